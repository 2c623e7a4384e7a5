#include "lockstep/early_stopping.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <limits>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

using detail::throw_invalid;

namespace {

constexpr const char* best_name = "best";  ///< NaN before the first value
constexpr const char* waited_name = "waited";
constexpr const char* not_finite_name = "not_finite";
constexpr const char* improved_name = "improved";
constexpr const char* greatest_name = "greatest";

at::Tensor integer(std::int64_t value) { return at::scalar_tensor(value, at::kLong); }

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(options) {
  if (options.patience < 1)
    throw_invalid("EarlyStopping", "got patience = ", options.patience, ", expected at least 1");
  if (!std::isfinite(options.min_delta) || options.min_delta < 0)
    throw_invalid("EarlyStopping", "got min_delta = ", options.min_delta,
                  ", expected a finite number of at least 0");
}

bool EarlyStopping::update(double value) {
  improved_ = false;
  if (std::isfinite(value)) {
    const double gain = !best_                            ? std::numeric_limits<double>::infinity()
                        : options_.mode == Best::greatest ? value - *best_
                                                          : *best_ - value;
    improved_ = gain > options_.min_delta;
  } else {
    not_finite_ = not_finite_ || options_.check_finite;
  }
  if (improved_) best_ = value;
  waited_ = improved_ ? 0 : waited_ + 1;
  return stopped();
}

bool EarlyStopping::update(double value, const Group& group) {
  const at::Tensor shared = at::full({1}, value, at::kDouble);
  const Group host = group.host();
  const SourceScope scope(host.communicator(), {.content = Source::Content::early_stopping});
  host.broadcast(shared).wait();
  return update(shared.item<double>());
}

State EarlyStopping::state() const {
  const double best = best_.value_or(std::numeric_limits<double>::quiet_NaN());
  return {{best_name, at::scalar_tensor(best, at::kDouble)},
          {waited_name, integer(waited_)},
          {not_finite_name, integer(not_finite_ ? 1 : 0)},
          {improved_name, integer(improved_ ? 1 : 0)},
          {greatest_name, integer(options_.mode == Best::greatest ? 1 : 0)}};
}

void EarlyStopping::load_state(const State& state) {
  constexpr const char* operation = "EarlyStopping::load_state";
  const State own = this->state();
  bool known = state.size() == own.size();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    known = known && found != state.end() && found->second.dim() == 0 &&
            found->second.scalar_type() == tensor.scalar_type();
  }
  if (!known) throw_invalid(operation, "got a state that state() did not return");
  const auto number = [&](const char* name) { return state.at(name).item<std::int64_t>(); };
  if (number(waited_name) < 0)
    throw_invalid(operation, "got ", number(waited_name), " values since the best one");
  const auto name_of = [](bool greatest) { return greatest ? "greatest" : "least"; };
  const bool greatest = options_.mode == Best::greatest;
  if ((number(greatest_name) != 0) != greatest)
    throw_invalid(operation, "got the state of mode ", name_of(!greatest), ", expected ",
                  name_of(greatest));
  const double best = state.at(best_name).item<double>();
  best_ = std::isnan(best) ? std::nullopt : std::optional(best);
  waited_ = number(waited_name);
  not_finite_ = number(not_finite_name) != 0;
  improved_ = number(improved_name) != 0;
}

}  // namespace lockstep
