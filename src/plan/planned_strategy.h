#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::plan {

/// A strategy as far as its cost can be foretold.
struct Strategy {
  enum class Kind { fp32, fp16, bf16, topk, int8, power_sgd, local_sgd };

  Kind kind = Kind::fp32;
  double value = 0;  ///< topk: ratio; power_sgd: rank; local_sgd: period
  std::string text = {};

  /// Exchanges parameters after the optimizer's step instead of gradients during backward.
  bool after_step() const { return kind == Kind::local_sgd; }
  /// Cannot be foretold without the shapes of the parameters.
  bool needs_shapes() const { return kind == Kind::power_sgd; }
};

/// Of a text as parse_strategy() takes it: "topk:0.01", "power_sgd:rank=4".
/// Throws: InvalidArgument naming what it held and what was expected; for those whose traffic
/// depends on the data, or whose cost is fp32's and more, too.
Strategy parse_strategy(std::string_view text);

/// Those that are compared where none is asked for.
std::vector<Strategy> usual_strategies();

}  // namespace lockstep::plan
