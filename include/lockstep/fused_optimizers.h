#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/distributed_optimizer.h"

namespace lockstep::inline v0_2 {

/// How a fused optimizer updates a parameter of bfloat16 or float16. Except with `nearest`, it
/// computes the update in float32. Parameters of other dtypes are not affected.
enum class LowPrecision {
  /// As torch.optim does: parameter and state are rounded to nearest, so updates below half a unit
  /// of a parameter's last place are lost.
  nearest,
  /// Keeps a float32 copy of the parameter, and the state in float32. The parameter is the copy,
  /// rounded. A value that the program writes into the parameter replaces that of the copy.
  master,
  /// For bfloat16. Keeps no copy. Parameter and state are rounded up or down at random, so that
  /// their expected values are exact. The random numbers follow from the number of the step, the
  /// place of the parameter in the optimizer and the element, so all ranks and resumed runs have
  /// the same.
  stochastic,
  /// For bfloat16. Keeps the rounding error of the parameter in bfloat16 (Kahan summation). The
  /// state is rounded as with `stochastic`.
  kahan
};

/// "nearest", "master", "stochastic" or "kahan".
std::string_view name(LowPrecision mode);
/// Throws: InvalidArgument for any other text.
LowPrecision parse_low_precision(std::string_view text);

/// The part of a fused optimizer that does not depend on its class.
class LowPrecisionOptimizer : public ElementwiseOptimizer {
 public:
  LowPrecision low_precision() const { return low_precision_; }

  /// Whether the optimizer updates this parameter as low_precision() says, and not as nearest.
  bool computes_in_float32(const at::Tensor& parameter) const;
  /// The dtype of the state of a parameter.
  at::ScalarType state_dtype(const at::Tensor& parameter) const;

  /// Throws: InvalidArgument unless low_precision() is nearest.
  void check_shareable() const override;

 protected:
  LowPrecision low_precision_ = LowPrecision::nearest;
};

/// An optimizer of LibTorch whose step reads and writes each parameter and its state once, with the
/// kernel of PyTorch's `fused=True`. Options, state and checkpoints are those of Base; results
/// differ by rounding only. Ranks can share its update (DataParallelOptions::share_memory). If the
/// kernel does not support a parameter or its gradient (sparse, not dense in memory, different
/// strides, not on the CPU), the step is that of Base.
/// Throws: InvalidArgument, from the constructors, for a parameter that is given twice, and from
/// step() for one that was added twice since.
template <class Base>
class FusedOptimizer : public Base, public LowPrecisionOptimizer {
 public:
  using Base::Base;

  /// For a model with parameters of bfloat16 or float16:
  ///
  ///     FusedAdamW adamw(model->parameters(), AdamWOptions(3e-4), LowPrecision::master);
  ///
  /// parameters: tensors, or parameter groups.
  /// Throws: InvalidArgument for a parameter of float16 with stochastic or kahan. step() throws it
  /// unless parameters of bfloat16 and float16 are on the CPU, dense in memory, with dense
  /// gradients.
  template <class Parameters, class Options>
  FusedOptimizer(Parameters&& parameters, const Options& options, LowPrecision mode)
      : Base(std::forward<Parameters>(parameters), options) {
    low_precision_ = mode;
    check_parameters();
  }

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  bool has(const at::Tensor& parameter) const override;
  std::vector<at::Tensor*> state_of(const at::Tensor& parameter) override;
  void begin_update(const at::Tensor& parameter) override;
  void update(const at::Tensor& parameter, const Elements& elements) override;
  void set_parts(const std::vector<Part>& parts) override;

 private:
  struct Place {
    std::size_t group = 0;  ///< in param_groups()
    std::size_t index = 0;  ///< in the group's params()
  };
  /// Which elements a tensor has.
  struct Origin {
    std::size_t parameter = 0;  ///< index in all groups
    std::size_t begin = 0;      ///< first element
  };

  std::size_t check_listed_once() const;
  void check_parameters() const;
  bool fits() const;
  std::optional<Place> place_of(const at::Tensor& parameter) const;
  Origin origin_of(const at::Tensor& parameter) const;
  const torch::optim::OptimizerOptions* options_of(const at::Tensor& parameter) const;
  torch::optim::OptimizerParamState& entry_of(const at::Tensor& parameter);
  std::vector<at::Tensor*> tensors_of(const at::Tensor& parameter,
                                      const torch::optim::OptimizerOptions& options);
  void add_step(const at::Tensor& parameter, std::vector<at::Tensor>& steps);
  void step_group(torch::optim::OptimizerParamGroup& group);
  void step_in_float32(const at::Tensor& parameter);
  void step_of_base();
  void remove_empty_state();

  /// The number of parameters that check_listed_once() has compared. Its initialiser checks those
  /// that the constructors of Base get.
  std::size_t checked_ = check_listed_once();
  /// Cache of the parameters' places: without it, a step would take quadratic time in their number.
  mutable std::unordered_map<const void*, Place> places_;
  std::unordered_map<const void*, Origin> parts_;  ///< of set_parts()
};

using FusedSgd = FusedOptimizer<torch::optim::SGD>;
using FusedAdam = FusedOptimizer<torch::optim::Adam>;
using FusedAdamW = FusedOptimizer<torch::optim::AdamW>;

extern template class FusedOptimizer<torch::optim::SGD>;
extern template class FusedOptimizer<torch::optim::Adam>;
extern template class FusedOptimizer<torch::optim::AdamW>;

}  // namespace lockstep
