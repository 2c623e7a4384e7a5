#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "lockstep/group.h"
#include "lockstep/parallel/options.h"
#include "lockstep/parallel/output_tensors.h"
#include "lockstep/sync/exchange.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

namespace detail {

class ReplicatedModel;

/// The part of a DistributedDataParallel that does not depend on the model's type.
class DataParallelModel {
 public:
  DataParallelModel(std::shared_ptr<torch::nn::Module> module, const Group& group,
                    const DataParallelOptions& options);

  void begin_forward() const;
  void watch(const at::Tensor& output) const;
  [[noreturn]] void refuse_output(const std::type_info& type) const;
  NoSync no_sync() const;
  void set_weight(double samples) const;
  State state() const;
  void load_state(const State& state) const;

 private:
  std::shared_ptr<ReplicatedModel> model_;
};

}  // namespace detail

/// Data-parallel training of a model that every rank holds: call it instead of the model, and
/// .grad() of every parameter is the mean over ranks when backward() returns.
///
///     lockstep::DistributedDataParallel ddp(model, world);
///     loss_of(ddp(batch.data), batch.target).backward();
///
/// Parameters that no rank's backward reached keep their gradient, or have none; those that some
/// ranks' reached get the mean over all ranks, zero counting for the others. Gradients lie in
/// buckets: they are overwritten by the next backward after zero_grad(). autograd::grad() is not
/// synchronised. With create_graph means have no graph either: a backward that comes to one raises
/// InvalidArgument. An exception within backward() that comes after buckets were sent ends the
/// world. Replicas whose parameters turn out to differ make backward() throw ReplicaError on every
/// rank, within as many steps as there are buckets.
///
/// Ranks: all must construct it, and run as many backwards. It may end before or after the model.
template <class M>
class DistributedDataParallel {
 public:
  /// Checks that all ranks hold the same parameters and buffers, and gives them rank 0's.
  /// Throws: InvalidArgument, on every rank, when they do not, naming the first difference and the
  /// ranks, or when the model cannot be wrapped; the group stays usable.
  DistributedDataParallel(std::shared_ptr<M> model, const Group& group,
                          const DataParallelOptions& options = {})
      : model_(std::move(model)), data_parallel_(model_, group, options) {}

  /// The same for a model declared with TORCH_MODULE.
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& model, const Group& group,
                          const DataParallelOptions& options = {})
      : DistributedDataParallel(model.ptr(), group, options) {}

  /// model.forward(args…). The output may be a tensor, or tuples, ranges, dictionaries, optionals,
  /// pointers and variants of them; for another type declare, in the type's namespace,
  ///
  ///     void visit_tensors(const Output& output, const auto& visit);  // calls visit(tensor)
  ///
  /// so that a rank whose loss reaches no parameter takes part in the exchange nevertheless.
  /// Throws: InvalidArgument when the model's list of parameters has changed, or when the output is
  /// of another type and gradients are enabled.
  template <class... Args>
  auto operator()(Args&&... args) {
    using Output = std::remove_cvref_t<decltype(model_->forward(std::forward<Args>(args)...))>;
    if (at::GradMode::is_enabled()) {
      data_parallel_.begin_forward();
      if constexpr (detail::Watchable<Output>) {
        auto output = model_->forward(std::forward<Args>(args)...);
        detail::for_each_tensor(output,
                                [&](const at::Tensor& tensor) { data_parallel_.watch(tensor); });
        return output;
      } else {
        data_parallel_.refuse_output(typeid(Output));
      }
    }
    return static_cast<Output>(model_->forward(std::forward<Args>(args)...));
  }

  const std::shared_ptr<M>& module() const { return model_; }

  /// Holds synchronisation back for as long as the guard lives.
  NoSync no_sync() const { return data_parallel_.no_sync(); }

  /// Before a backward: how much this rank's gradients count in it, as the samples of its batch do.
  /// .grad() is then Σ w_r·g_r ÷ Σ w_r. A rank of weight 0 takes part without having a say. Without
  /// it all count alike. Does not block.
  /// Ranks: all, or none. That backward throws InvalidArgument, on every rank, when a weight is
  /// negative or not finite, or all are zero; the group stays usable.
  void weight(double samples) { data_parallel_.set_weight(samples); }

  /// What the strategy remembers of this rank, by parameter names: to be saved, and loaded again on
  /// the same rank.
  State state() const { return data_parallel_.state(); }
  /// Throws: InvalidArgument when it is not a state of this model and strategy.
  void load_state(const State& state) { data_parallel_.load_state(state); }

 private:
  std::shared_ptr<M> model_;
  detail::DataParallelModel data_parallel_;
};

template <class M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&, const Group&)
    -> DistributedDataParallel<M>;
template <class M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&, const Group&, const DataParallelOptions&)
    -> DistributedDataParallel<M>;

}  // namespace lockstep
