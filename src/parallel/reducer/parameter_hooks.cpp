#include "parallel/reducer/parameter_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "group/instances.h"
#include "parallel/reducer/gradient.h"

namespace lockstep::inline v0_2::detail {

using torch::autograd::variable_list;

/// May outlive the ParameterHooks: graphs keep replaced accumulators alive.
struct ParameterHooks::Hook final : torch::autograd::FunctionPostHook {
  explicit Hook(Target to) : target(std::move(to)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (const auto calls = target.calls.lock()) calls->after(target.parameter, inputs.at(0));
    return outputs;
  }
  Target target;
};

/// The same for the call before the gradient is added.
struct ParameterHooks::HookBefore final : torch::autograd::FunctionPreHook {
  explicit HookBefore(Target to) : target(std::move(to)) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto calls = target.calls.lock()) calls->before(target.parameter);
    return gradients;
  }
  Target target;
};

ParameterHooks::ParameterHooks(std::vector<NamedTensor> parameters, Callbacks callbacks)
    : callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))) {
  for (auto& parameter : parameters) hooked_.push_back({.parameter = std::move(parameter)});
  for (std::size_t i = 0; i < hooked_.size(); ++i) add(i);
  Instances<ParameterHooks>::all().list.push_back(this);
}

ParameterHooks::~ParameterHooks() {
  std::erase(Instances<ParameterHooks>::all().list, this);
  for (const auto& hooked : hooked_) {
    if (!hooked.accumulator) continue;
    hooked.accumulator->del_post_hook(hooked.key);
    std::erase_if(hooked.accumulator->pre_hooks(),
                  [&](const auto& hook) { return hook.get() == hooked.before; });
  }
}

void ParameterHooks::add(std::size_t index) {
  auto& hooked = hooked_[index];
  // The parameter has only a weak reference to its accumulator and so to the hook.
  hooked.accumulator = torch::autograd::impl::grad_accumulator(hooked.parameter.tensor);
  hooked.key = hooked.accumulator->add_post_hook(std::make_unique<Hook>(Target{callbacks_, index}));
  auto before = std::make_unique<HookBefore>(Target{callbacks_, index});
  hooked.before = before.get();
  hooked.accumulator->add_pre_hook(std::move(before));
}

std::vector<std::size_t> ParameterHooks::hook_new_accumulators() {
  std::vector<std::size_t> replaced;
  for (std::size_t i = 0; i < hooked_.size(); ++i) {
    const auto& [name, tensor] = hooked_[i].parameter;
    if (torch::autograd::impl::try_get_grad_accumulator(tensor) == hooked_[i].accumulator) continue;
    if (!tensor.requires_grad()) continue;
    check_unhooked(name, tensor);
    add(i);
    replaced.push_back(i);
  }
  return replaced;
}

bool ParameterHooks::accumulates_here() const {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;
  return std::ranges::any_of(hooked_, [&](const Hooked& hooked) {
    const auto accumulator =
        torch::autograd::impl::try_get_grad_accumulator(hooked.parameter.tensor);
    const auto found = nodes->find(accumulator.get());
    return found != nodes->end() && found->second.needed_;
  });
}

bool ParameterHooks::is_in_node() { return torch::autograd::get_current_node() != nullptr; }

bool ParameterHooks::is_hooked(const torch::autograd::Node& accumulator) {
  return std::ranges::any_of(accumulator.post_hooks(), [](const auto& hook) {
    return dynamic_cast<const Hook*>(hook.get()) != nullptr;
  });
}

ParameterHooks::Graph ParameterHooks::graph_of(const at::Tensor& tensor) {
  Graph nodes;
  std::vector<torch::autograd::Node*> next{
      torch::autograd::impl::gradient_edge(tensor).function.get()};
  while (!next.empty()) {
    auto* const node = next.back();
    next.pop_back();
    if (node == nullptr || !nodes.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
  }
  return nodes;
}

void ParameterHooks::find_replaced(const std::function<bool(std::size_t)>& is_reached,
                                   const std::function<Graph()>& graph) {
  replaced_.clear();
  const auto before = std::exchange(suspects_, {});
  std::vector<std::size_t> unreached;
  for (std::size_t i = 0; i < hooked_.size(); ++i) {
    const bool was_expected = std::exchange(hooked_[i].is_expected, is_reached(i));
    if (was_expected && !hooked_[i].is_expected) unreached.push_back(i);
  }
  if (unreached.empty()) return;
  suspects_ = find_suspects(unreached, graph());
  for (const auto& suspect : suspects_.list) {
    hooked_[suspect.parameter].is_expected = true;
    const bool was_suspect = std::ranges::find(before.list, suspect) != before.list.end();
    if (was_suspect && before.last < suspects_.first) replaced_.push_back(suspect.parameter);
  }
}

/// The suspects among some parameters.
ParameterHooks::Suspects ParameterHooks::find_suspects(const std::vector<std::size_t>& parameters,
                                                       const Graph& graph) const {
  const auto all = Instances<ParameterHooks>::all();
  Suspects suspects;
  for (const auto* const node : graph) {
    const auto* const accumulator = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (accumulator == nullptr) {
      suspects.first = std::min(suspects.first, node->sequence_nr());
      suspects.last = std::max(suspects.last, node->sequence_nr());
      continue;
    }
    if (is_hooked(*accumulator)) continue;
    const auto& leaf = accumulator->variable;
    // A new accumulator of a parameter has no hook yet, maybe one of another wrapper.
    const auto has_leaf = [&](const ParameterHooks* one) {
      return std::ranges::any_of(one->hooked_, [&](const Hooked& hooked) {
        return hooked.parameter.tensor.is_same(leaf);
      });
    };
    if (std::ranges::any_of(all.list, has_leaf)) continue;
    for (const auto index : parameters) {
      const auto& tensor = hooked_[index].parameter.tensor;
      if (tensor.requires_grad() && !graph.contains(hooked_[index].accumulator.get()) &&
          tensor.sizes() == leaf.sizes() && tensor.options().type_equal(leaf.options())) {
        suspects.list.push_back(
            {.parameter = index, .leaf = c10::weak_intrusive_ptr(leaf.getIntrusivePtr())});
      }
    }
  }
  return suspects;
}

bool ParameterHooks::is_new_leaf(const at::Tensor& leaf) {
  std::erase_if(watched_leaves_, [](const auto& watched) { return watched.expired(); });
  const auto is_leaf = [&](const auto& watched) {
    return watched.lock().get() == leaf.unsafeGetTensorImpl();
  };
  if (std::ranges::any_of(watched_leaves_, is_leaf)) return false;
  watched_leaves_.emplace_back(leaf.getIntrusivePtr());
  return true;
}

void ParameterHooks::check_unhooked(const std::string& name, const at::Tensor& parameter) {
  if (!is_hooked(*torch::autograd::impl::grad_accumulator(parameter))) return;
  refuse(name,
         "another wrapper already synchronises it, so it would be averaged twice: wrap a model "
         "once, or destroy the first wrapper before; pass a DistributedDataParallel to the "
         "DistributedOptimizer in place of its model; for several optimizers over one model, give "
         "each its own parameters and set DataParallelOptions::optimized_only for all of them");
}

}  // namespace lockstep::detail
