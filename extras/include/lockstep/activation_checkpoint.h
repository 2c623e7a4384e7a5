#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/distributed_data_parallel.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0_2 {

/// Options of recompute().
struct RecomputeOptions {
  /// The random generators that the segment draws from, beside LibTorch's default ones.
  std::vector<at::Generator> generators = {};
  /// The buffers that the segment changes, if it is a callable. Those of a module need no entry.
  std::vector<at::Tensor> buffers = {};
  /// Compares the outputs of the second forward, on the CPU, with those of the first by a digest.
  bool compare_outputs = true;
};

namespace detail {

using TensorSink = std::function<void(const at::Tensor&)>;

/// A part of a forward that can run several times.
class Segment {
 public:
  virtual ~Segment() = default;
  /// Runs the forward with these tensors in the place of its tensor arguments.
  virtual void run(const std::vector<at::Tensor>& inputs) = 0;
  /// Calls sink with every tensor of the last run's output that for_each_tensor() finds.
  virtual void visit_outputs(const TensorSink& sink) const = 0;
  virtual void drop_outputs() = 0;
};

/// Runs the segment so that autograd runs it again instead of saving its tensors.
/// Throws: as recompute().
void run_recomputable(const std::shared_ptr<Segment>& segment,
                      const std::vector<at::Tensor>& inputs, RecomputeOptions options);

std::vector<at::Tensor> buffers_of(const torch::nn::Module& module);

template <class T>
concept ModuleHandle = std::is_base_of_v<torch::detail::ModuleHolderIndicator, T> ||
    requires(const T& handle) {
  {std::shared_ptr<const torch::nn::Module>(handle)};
};

template <class Function, class... Args>
decltype(auto) run_forward_of(Function& function, Args&&... args) {
  if constexpr (ModuleHandle<Function>) {
    return function->forward(std::forward<Args>(args)...);
  } else {
    return std::invoke(function, std::forward<Args>(args)...);
  }
}

template <class Function, class... Args>
using OutputOf = std::remove_cvref_t<decltype(run_forward_of(std::declval<Function&>(),
                                                             std::declval<Args&>()...))>;

/// A function and its arguments. Keeps all arguments but the tensors, which run() receives.
template <class Function, class... Args>
class SegmentOf final : public Segment {
 public:
  using Output = OutputOf<Function, Args...>;

  SegmentOf(Function function, Args... args)
      : function_(std::move(function)), args_(std::move(args)...) {
    set_tensors(args_, std::vector<at::Tensor>(sizeof...(Args)));
  }

  void run(const std::vector<at::Tensor>& inputs) override {
    std::tuple<Args...> args = args_;
    set_tensors(args, inputs);
    output_.emplace(std::apply(
        [&](auto&... all) -> Output { return run_forward_of(function_, all...); }, args));
  }

  void visit_outputs(const TensorSink& sink) const override {
    if constexpr (Watchable<Output>) for_each_tensor(*output_, sink);
  }

  void drop_outputs() override { output_.reset(); }
  Output take_output() { return *std::exchange(output_, std::nullopt); }

 private:
  /// Replaces the tensors among the arguments, in order.
  static void set_tensors(std::tuple<Args...>& args, const std::vector<at::Tensor>& tensors) {
    auto next = tensors.begin();
    const auto set = [&]<class T>(T& argument) {
      if constexpr (std::same_as<T, at::Tensor>) argument = *next++;
    };
    std::apply([&](auto&... all) { (set(all), ...); }, args);
  }

  Function function_;
  std::tuple<Args...> args_;
  std::optional<Output> output_;
};

}  // namespace detail

/// Activation checkpointing: runs a segment of a forward without keeping the tensors that its
/// backward needs, and runs it once more when the backward needs them. This takes less memory and
/// more time. Gradients have the same bits as without it.
///
///     at::Tensor forward(at::Tensor x) {
///       for (auto& block : blocks) x = lockstep::recompute(block, x);
///       return head(x);
///     }
///
/// The segment is a module holder (TORCH_MODULE), a std::shared_ptr to a module, or a callable.
/// Returns what the segment returns. Only the tensors among inputs are kept until the backward, so
/// pass them as arguments of their own instead of capturing them; other values are copied.
/// Without gradient mode the segment just runs.
///
/// The second forward has the first one's random numbers (LibTorch's default generators and
/// options.generators), autocast state and buffers, and leaves all of these as they were before it.
/// SyncBatchNorm uses the statistics of the first forward again, so the second has no collective.
/// Buffers that a callable changes must be named in options.buffers, as num_batches_tracked of a
/// batch norm; only running_mean and running_var of batch norms need no entry. Thread ranks share
/// LibTorch's default generator, so ranks whose segments have dropout must be processes.
///
/// Works under both front ends: gradients are exchanged in the backward as always. Segments may be
/// nested and may share parameters.
///
/// Ranks: not collective, but its SyncBatchNorm layers are in their first forward.
/// Throws: what the segment throws. The backward throws what the second forward throws;
/// InvalidArgument if the second forward gives other outputs or saves another number of tensors
/// than the first; InvalidArgument for a backward within the segment's forward; and LibTorch's
/// error for a tensor that was changed in place after the first forward used it.
///
/// Source: Chen, Xu, Zhang, Guestrin: Training deep nets with sublinear memory cost, 2016.
template <class Function, class... Inputs>
auto recompute(RecomputeOptions options, Function&& function, Inputs&&... inputs) {
  using Typed = detail::SegmentOf<std::decay_t<Function>, std::decay_t<Inputs>...>;
  if (!at::GradMode::is_enabled()) {
    std::decay_t<Function> copy(std::forward<Function>(function));
    return typename Typed::Output(detail::run_forward_of(copy, std::forward<Inputs>(inputs)...));
  }
  std::vector<at::Tensor> tensors;
  const auto add = [&](const auto& input) {
    if constexpr (std::same_as<std::decay_t<decltype(input)>, at::Tensor>) tensors.push_back(input);
  };
  (add(inputs), ...);
  if constexpr (detail::ModuleHandle<std::decay_t<Function>>) {
    const auto buffers = detail::buffers_of(*function);
    options.buffers.insert(options.buffers.end(), buffers.begin(), buffers.end());
  }
  const auto segment =
      std::make_shared<Typed>(std::forward<Function>(function), std::forward<Inputs>(inputs)...);
  detail::run_recomputable(segment, tensors, std::move(options));
  return segment->take_output();
}

/// recompute() with the default options.
template <class Function, class... Inputs>
auto recompute(Function&& function, Inputs&&... inputs) requires(
    !std::same_as<std::decay_t<Function>, RecomputeOptions>) {
  return recompute(RecomputeOptions(), std::forward<Function>(function),
                   std::forward<Inputs>(inputs)...);
}

}  // namespace lockstep
