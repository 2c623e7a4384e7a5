#include "lockstep/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/TensorOptions.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "parallel/reducer/reducer.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {

using detail::throw_invalid;

namespace {

constexpr const char* scale_name = "scale";
constexpr const char* tracker_name = "growth_tracker";

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

/// Whether gradients can be multiplied by this scale and by its inverse. Ranks may flush denormals.
bool is_scale(float value) { return value > 0 && std::isnormal(value) && std::isnormal(1 / value); }
constexpr const char* range_of_scales = "1.18e-38 to 8.5e37, so that float32 has its inverse, too";

void expect_supported(const at::Tensor& gradient, const Group& group, const char* operation) {
  if (gradient.layout() != at::kStrided || gradient.device() != group.device()) {
    throw_invalid(operation, "got a gradient of layout ", gradient.layout(), " on ",
                  gradient.device(), ", expected a dense one on ", group.device());
  }
  if (gradient.scalar_type() == at::kHalf) {
    throw_invalid(operation,
                  "got a gradient of float16, expected float32: keep parameters in float32 and run "
                  "the forward under Autocast");
  }
}

}  // namespace

GradScaler::GradScaler(Group group, GradScalerOptions options)
    : group_(std::move(group)), options_(options), scale_(static_cast<float>(options.init_scale)) {
  const auto& o = options_;
  if (!is_scale(scale_)) {
    throw_invalid("GradScaler", "got init_scale = ", o.init_scale, ", expected ", range_of_scales);
  }
  if (!is_positive(o.growth_factor) || o.growth_factor < 1) {
    throw_invalid("GradScaler", "got growth_factor = ", o.growth_factor, ", expected at least 1");
  }
  if (!is_positive(o.backoff_factor) || o.backoff_factor >= 1) {
    throw_invalid("GradScaler", "got backoff_factor = ", o.backoff_factor,
                  ", expected a number between 0 and 1");
  }
  if (o.growth_interval < 1) {
    throw_invalid("GradScaler", "got growth_interval = ", o.growth_interval,
                  ", expected at least 1");
  }
}

bool GradScaler::Unscaled::is_finite() {
  if (!finite) finite = found_inf.item<float>() == 0;
  return *finite;
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  const auto dtype = loss.scalar_type();
  const bool lower = dtype == at::kHalf || dtype == at::kBFloat16;
  return (lower ? loss.to(at::kFloat) : loss) * static_cast<double>(scale_);
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  constexpr const char* operation = "GradScaler::unscale_";
  if (!options_.enabled) return;
  if (unscaled_.contains(&optimizer)) {
    throw_invalid(operation, "got a second call for one optimizer, expected update() between them");
  }
  detail::check_listed_once(optimizer, operation);  // a gradient would be divided twice
  std::map<at::ScalarType, std::vector<at::Tensor>> gradients;
  for (const auto& parameter : detail::all_parameters(optimizer)) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    expect_supported(gradient, group_, operation);
    gradients[gradient.scalar_type()].push_back(gradient);
  }
  if (const auto* sharded = detail::ShardedParameters::of(optimizer)) {
    for (const auto& part : sharded->gradients()) gradients[part.scalar_type()].push_back(part);
  }
  const at::NoGradGuard no_grad;
  auto found_inf = at::zeros({1}, at::TensorOptions(group_.device()).dtype(at::kFloat));
  const auto inverse = at::full({}, 1 / static_cast<double>(scale_), found_inf.options());
  for (auto& [dtype, of_dtype] : gradients) {
    {
      const at::AutoDispatchBelowADInplaceOrView no_versions;
      at::_amp_foreach_non_finite_check_and_unscale_(of_dtype, found_inf, inverse);
    }
    // The backward of a graph that has saved a gradient raises an error.
    for (const auto& gradient : of_dtype) gradient.unsafeGetTensorImpl()->bump_version();
  }
  const SourceScope scope(group_.communicator(), {.content = Source::Content::grad_scaler});
  group_.all_reduce(found_inf, ReduceOp::max).wait();
  unscaled_.emplace(&optimizer, Unscaled{.found_inf = std::move(found_inf)});
}

void GradScaler::unscale_(DistributedOptimizer& optimizer) {
  if (!options_.enabled) return;
  if (!unscaled_.contains(&optimizer.optimizer())) optimizer.average_gradients();
  unscale_(optimizer.optimizer());
  optimizer.model_->reducer().keep_averages();
}

template <class Stepped>
bool GradScaler::step_unless_infinite(torch::optim::Optimizer& optimizer, Stepped& stepped) {
  if (!options_.enabled) {
    stepped.step();
    return true;
  }
  if (!unscaled_.contains(&optimizer)) unscale_(stepped);
  auto& unscaled = unscaled_.at(&optimizer);
  if (unscaled.stepped) {
    throw_invalid("GradScaler::step",
                  "got a second call for one optimizer, expected update() between them");
  }
  unscaled.stepped = true;
  const bool is_finite = unscaled.is_finite();
  if (is_finite) {
    stepped.step();
  } else if (const auto* sharded = detail::ShardedParameters::of(optimizer)) {
    sharded->release_gradients();
  }
  return is_finite;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (DistributedOptimizer::has(optimizer)) {
    throw_invalid("GradScaler::step",
                  "got the optimizer of a DistributedOptimizer, expected the DistributedOptimizer: "
                  "pass that, whose step() also averages gradients or parameters");
  }
  return step_unless_infinite(optimizer, optimizer);
}

bool GradScaler::step(DistributedOptimizer& optimizer) {
  optimizer.model_->reducer().end_own_step_check();  // also for a step that is skipped
  return step_unless_infinite(optimizer.optimizer(), optimizer);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (unscaled_.empty()) {
    throw_invalid("GradScaler::update",
                  "got no step() or unscale_() since the last update(), expected one");
  }
  bool is_finite = true;
  for (auto& [optimizer, unscaled] : unscaled_) is_finite = unscaled.is_finite() && is_finite;
  unscaled_.clear();
  if (!is_finite) {
    const auto reduced = static_cast<float>(scale_ * options_.backoff_factor);
    if (is_scale(reduced)) scale_ = reduced;
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (is_scale(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
}

void GradScaler::update(double new_scale) {
  if (!is_scale(static_cast<float>(new_scale))) {
    throw_invalid("GradScaler::update", "got a scale of ", new_scale, ", expected ",
                  range_of_scales);
  }
  scale_ = static_cast<float>(new_scale);
  unscaled_.clear();
}

State GradScaler::state() const {
  if (!options_.enabled) return {};
  return {{scale_name, at::scalar_tensor(scale_, at::kFloat)},
          {tracker_name, at::scalar_tensor(growth_tracker_, at::kLong)}};
}

void GradScaler::load_state(const State& state) {
  constexpr const char* operation = "GradScaler::load_state";
  if (!options_.enabled) return;
  const auto find = [&](const char* name, at::ScalarType dtype) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.numel() != 1 ||
        found->second.scalar_type() != dtype) {
      throw_invalid(operation, "got no '", name, "' of one ", dtype, ", expected one");
    }
    return found->second;
  };
  const float scale = find(scale_name, at::kFloat).item<float>();
  const auto tracker = find(tracker_name, at::kLong).item<std::int64_t>();
  if (!is_scale(scale) || tracker < 0) {
    throw_invalid(operation, "got a scale of ", scale, " and ", tracker,
                  " steps, expected at least 0 steps and a scale of ", range_of_scales);
  }
  scale_ = scale;
  growth_tracker_ = tracker;
  unscaled_.clear();
}

}  // namespace lockstep
