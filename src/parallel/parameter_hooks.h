#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "parallel/replicated_model.h"

namespace lockstep::inline v0_2::detail {

/// Hooks on the gradient accumulators of parameters. A hook calls the callback after a backward has
/// added a gradient to the parameter's. LibTorch also calls it with undefined gradients.
class ParameterHooks {
 public:
  using Callback = std::function<void(std::size_t parameter, const at::Tensor& incoming)>;

  ParameterHooks(std::vector<NamedTensor> parameters, Callback callback);
  /// Removes the hooks.
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  /// Hooks new accumulators, and returns the indices of their parameters. LibTorch makes a new one
  /// when a parameter's data is replaced, as torch::load() and Module::to() do. Old accumulators
  /// keep their hooks for the graphs that still refer to them.
  /// Throws: InvalidArgument when another wrapper has hooked one.
  std::vector<std::size_t> hook_new_accumulators();

  /// Whether the current backward accumulates into the gradient of a parameter. False in
  /// autograd::grad() and in a backward() with other inputs.
  bool accumulates_here() const;

  using Graph = std::unordered_set<torch::autograd::Node*>;
  /// The nodes of the graph that computed a tensor.
  static Graph graph_of(const at::Tensor& tensor);
  /// A parameter that a graph does not reach, and a leaf of its sizes in the graph that no wrapper
  /// has hooked. The program may have replaced the one by the other.
  struct Suspect {
    std::size_t parameter;
    c10::weak_intrusive_ptr<at::TensorImpl> leaf;
    /// Autograd's sequence numbers of the first and the last operation of the graph.
    std::uint64_t first;
    std::uint64_t last;
  };
  /// The suspects among some parameters.
  std::vector<Suspect> find_suspects(const std::vector<std::size_t>& parameters,
                                     const Graph& graph) const;

  /// Throws: InvalidArgument when a wrapper has hooked the parameter.
  static void check_unhooked(const std::string& name, const at::Tensor& parameter);

 private:
  class Hook;

  struct Hooked {
    NamedTensor parameter;
    decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>())) accumulator = {};
    std::uintptr_t key = 0;
  };

  void add(std::size_t index);
  static bool is_hooked(const torch::autograd::Node& accumulator);

  std::shared_ptr<const Callback> callback_;
  std::vector<Hooked> hooked_;
};

}  // namespace lockstep::detail
