#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/low_precision_optimizer.h"

namespace lockstep::inline v0_2 {

/// An optimizer of LibTorch whose step reads and writes each parameter and its state once, with the
/// kernel of PyTorch's `fused=True`, on the CPU and on GPUs. Options, state and checkpoints are
/// those of Base; results differ by rounding only. Ranks can share its update
/// (DataParallelOptions::share_memory). If the kernel does not support a parameter or its gradient
/// (sparse, not dense in memory, different strides, parameters on several devices), the step is
/// that of Base.
///
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

  const std::type_info& libtorch_class() const override {
    return typeid(*this) == typeid(FusedOptimizer) ? typeid(Base) : typeid(*this);
  }
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
  const torch::optim::OptimizerOptions& options_of(const at::Tensor& parameter) const;
  torch::optim::OptimizerParamState& entry_of(const at::Tensor& parameter);
  std::vector<at::Tensor*> tensors_of(const at::Tensor& parameter,
                                      const torch::optim::OptimizerOptions& options);
  std::vector<at::Tensor> step_of(const at::Tensor& parameter);
  void step_group(torch::optim::OptimizerParamGroup& group);
  void step_in_float32(const at::Tensor& parameter);
  void step_of_base();

  /// The number of parameters that check_listed_once() has compared. Its initialiser checks those
  /// that the constructors of Base get.
  std::size_t checked_ = check_listed_once();
  /// Cache of the parameters' places.
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
