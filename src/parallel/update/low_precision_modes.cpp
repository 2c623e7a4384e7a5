#include <array>
#include <cstddef>

#include "core/operation_error.h"
#include "lockstep/low_precision_optimizer.h"

namespace lockstep::inline v0_2 {
namespace {

constexpr std::array mode_names{"nearest", "master", "stochastic", "kahan"};

}  // namespace

std::string_view name(LowPrecision mode) { return mode_names.at(static_cast<std::size_t>(mode)); }

LowPrecision parse_low_precision(std::string_view text) {
  for (std::size_t i = 0; i < mode_names.size(); ++i) {
    if (text == mode_names[i]) return static_cast<LowPrecision>(i);
  }
  detail::throw_invalid("parse_low_precision", "got '", text,
                        "', expected nearest, master, stochastic or kahan");
}

bool LowPrecisionOptimizer::computes_in_float32(const at::Tensor& parameter) const {
  const auto dtype = parameter.scalar_type();
  return low_precision_ != LowPrecision::nearest && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

at::ScalarType LowPrecisionOptimizer::state_dtype(const at::Tensor& parameter) const {
  const bool is_float = low_precision_ == LowPrecision::master && computes_in_float32(parameter);
  return is_float ? at::kFloat : parameter.scalar_type();
}

void LowPrecisionOptimizer::check_shareable() const {
  if (low_precision_ == LowPrecision::nearest) return;
  detail::throw_invalid("DistributedOptimizer",
                        "share_memory: got an optimizer with LowPrecision::", name(low_precision_),
                        ", expected LowPrecision::nearest: use shard = Shard::optimizer or "
                        "Shard::gradients, which divide its state, too");
}

}  // namespace lockstep
