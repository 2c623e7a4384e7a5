#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/model_view.h"

namespace lockstep::inline v0_2::detail {

/// Hooks on the gradient accumulators of parameters. A hook calls a callback after a backward has
/// added a gradient to the parameter's: once a backward, with the sum over all uses. LibTorch also
/// calls it with undefined gradients.
class ParameterHooks {
 public:
  struct Callbacks {
    /// Called before the gradient is added, and after it.
    std::function<void(std::size_t parameter)> before;
    std::function<void(std::size_t parameter, const at::Tensor& incoming)> after;
  };

  ParameterHooks(std::vector<NamedTensor> parameters, Callbacks callbacks);
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

  /// Whether this thread is in a node of a backward. At the end of a backward, whether that is
  /// nested in another one.
  static bool is_in_node();

  using Graph = std::unordered_set<torch::autograd::Node*>;
  /// The nodes of the graph that computed a tensor.
  static Graph graph_of(const at::Tensor& tensor);
  /// Finds parameters that the program has replaced: backwards of two forwards in a row reach the
  /// same leaf in place of the parameter. An input that requires a gradient may have a parameter's
  /// sizes, too, but is another tensor in each forward. Looks at the graph only if it does not
  /// reach parameters that the one before reached. Call once for each backward. is_reached: whether
  /// the backward has reached a parameter.
  void find_replaced(const std::function<bool(std::size_t parameter)>& is_reached,
                     const std::function<Graph()>& graph);
  /// The parameters that the last find_replaced() has found.
  std::vector<std::size_t> take_replaced() { return std::exchange(replaced_, {}); }

  /// Whether this is the first call with the leaf, which an output of the model is. Leaves keep
  /// their hooks from step to step.
  bool is_new_leaf(const at::Tensor& leaf);

  /// Throws: InvalidArgument when a wrapper has hooked the parameter.
  static void check_unhooked(const std::string& name, const at::Tensor& parameter);

 private:
  struct Hook;
  struct HookBefore;
  /// A hook calls the callbacks with its parameter.
  struct Target {
    std::weak_ptr<const Callbacks> calls;
    std::size_t parameter;
  };

  struct Hooked {
    NamedTensor parameter;
    decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>())) accumulator = {};
    std::uintptr_t key = 0;
    const HookBefore* before = nullptr;
    bool is_expected = true;  ///< the last backward has reached it, or a leaf in its place
  };
  /// A parameter that a graph does not reach, and a leaf of its sizes in the graph that no wrapper
  /// has hooked. The program may have replaced the one by the other.
  struct Suspect {
    std::size_t parameter;
    c10::weak_intrusive_ptr<at::TensorImpl> leaf;
    bool operator==(const Suspect&) const = default;
  };
  struct Suspects {
    std::vector<Suspect> list;
    /// Autograd's sequence numbers of the first and the last operation of the graph.
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t last = 0;
  };

  Suspects find_suspects(const std::vector<std::size_t>& parameters, const Graph& graph) const;
  void add(std::size_t index);
  static bool is_hooked(const torch::autograd::Node& accumulator);

  std::shared_ptr<const Callbacks> callbacks_;
  std::vector<Hooked> hooked_;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> watched_leaves_;
  Suspects suspects_;                  ///< of the last backward
  std::vector<std::size_t> replaced_;  ///< parameters that the program has replaced on this rank
};

}  // namespace lockstep::detail
