#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::plan {

/// A strategy whose cost can be forecast.
struct Strategy {
  enum class Kind { fp32, fp16, bf16, topk, int8, power_sgd, local_sgd };

  Kind kind = Kind::fp32;
  double value = 0;  ///< topk: ratio; power_sgd: rank; local_sgd: period
  std::string text = {};

  /// Whether it exchanges parameters after the optimizer's step instead of gradients during
  /// backward.
  bool after_step() const { return kind == Kind::local_sgd; }
  /// Whether its cost depends on the shapes of the parameters.
  bool needs_shapes() const { return kind == Kind::power_sgd; }
};

/// Parses a text in the format of lockstep::parse_strategy(): "topk:0.01", "power_sgd:rank=4".
/// Throws: InvalidArgument naming the value and the expected values. Also for strategies whose
/// traffic depends on the data, or that exchange as much as fp32 or more.
Strategy parse_strategy(std::string_view text);

/// The strategies that are compared by default.
std::vector<Strategy> usual_strategies();

}  // namespace lockstep::plan
