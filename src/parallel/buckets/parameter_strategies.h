#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/model_view.h"
#include "lockstep/strategy.h"

namespace lockstep::inline v0_2::detail {

/// The strategies of a wrapper: one for all parameters, and others for those whose names match a
/// pattern.
class ParameterStrategies {
 public:
  explicit ParameterStrategies(const DataParallelOptions& options);

  /// The index of a parameter's strategy; 0 for the one of all parameters without another.
  std::size_t index_of(const std::string& parameter) const;
  const Strategy& operator[](std::size_t index) const { return entries_[index].strategy; }
  std::size_t size() const { return entries_.size(); }

  /// Whether every step exchanges the gradients of every parameter, and no step exchanges
  /// parameters.
  bool exchanges_every_gradient() const;
  /// "fp32", or "fp32, embedding.*=topk:0.01".
  std::string text() const;

  /// Throws: InvalidArgument for a pattern that matches none of these.
  void check_patterns(std::span<const NamedTensor> parameters) const;

 private:
  /// The first has the pattern of all names, and is searched last.
  std::vector<ParameterStrategy> entries_;
};

}  // namespace lockstep::detail
