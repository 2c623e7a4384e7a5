#include "lockstep/activation_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <any>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "core/numeric/digest.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "extras/nn/forward_state.h"
#include "lockstep/error.h"
#include "nn/recomputed_segment.h"

// Note [How a segment is recomputed]
//
// Autograd saves a tensor for a backward as a SavedVariable, which asks the default engine for
// hooks. HookingEngine, which is installed at the first use, gives it hooks while a segment runs.
// In the first forward a hook keeps the tensor's index only: the count of tensors saved before it.
// When the backward asks a hook for its tensor, the whole segment runs once more, its hooks keep
// every tensor under its index, and its own graph is dropped. The graph of the first forward stays,
// so that gradients are accumulated by the same nodes in the same order as without recompute().
//
// This is PyTorch's non-reentrant checkpoint. The reentrant form runs a backward within the
// backward. The hooks of parameters would then run in an inner run of the engine, and the exchange
// of all gradients would wait for the end of the outer one.

namespace lockstep::inline v0_2::detail {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

std::uint32_t version_of_saved(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

[[noreturn]] void refuse_segment(const std::string& why) { throw_invalid("recompute", why); }

/// A tensor of the graph, or one that shares its memory and version.
struct Kept {
  at::Tensor tensor = {};
  std::uint32_t version = 0;

  void expect_unchanged() const {
    if (version_of_saved(tensor) == version) return;
    refuse_segment(concat("got a tensor of sizes ", tensor.sizes(),
                          " that was changed in place after autograd saved it, expected it "
                          "unchanged until the backward: change a copy"));
  }
};

/// The default generators that a forward with these inputs may draw from, and the named ones.
std::vector<at::Generator> generators_of(const std::vector<at::Tensor>& inputs,
                                         std::vector<at::Generator> named) {
  named.push_back(at::detail::getDefaultCPUGenerator());
  std::set<at::DeviceIndex> gpus;
  for (const auto& input : inputs) {
    if (input.defined() && input.is_cuda()) gpus.insert(input.device().index());
  }
  for (const auto index : gpus) {
    named.push_back(at::globalContext().defaultGenerator(at::Device(at::kCUDA, index)));
  }
  return named;
}

/// Digests of outputs on the CPU.
std::vector<std::uint64_t> digests_of(const Segment& segment) {
  std::vector<std::uint64_t> digests;
  segment.visit_outputs([&](const at::Tensor& output) {
    if (!output.defined() || !output.is_cpu() || output.layout() != at::kStrided) return;
    const auto values = output.detach().contiguous();
    digests.push_back(
        digest(std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes())));
  });
  return digests;
}

class RecordedSegment;

/// A run of a segment on this thread.
struct Run final : SegmentRun {
  RecordedSegment& segment;
  std::size_t saved = 0;  ///< tensors that autograd has saved so far
};

/// Adds a run to the thread's until the result is destroyed. A repetition begins a list of its own.
[[nodiscard]] auto entered(Run& run) {
  auto& runs = segment_runs();
  auto outer = runs;
  if (!run.is_first) runs.clear();
  runs.push_back(&run);
  return c10::make_scope_exit([&runs, outer = std::move(outer)]() mutable { runs.swap(outer); });
}

/// A segment after its first forward. Owned by the hooks of that forward's graph.
class RecordedSegment : public std::enable_shared_from_this<RecordedSegment> {
 public:
  RecordedSegment(std::shared_ptr<Segment> segment, const std::vector<at::Tensor>& inputs,
                  const RecomputeOptions& options)
      : segment_(std::move(segment)),
        compares_outputs_(options.compare_outputs),
        state_(generators_of(inputs, options.generators), options.buffers) {
    // Within an outer segment, the hooks of that segment save the inputs.
    for (const auto& input : inputs) {
      inputs_.push_back({.saved = SavedVariable(input, /*is_output=*/false),
                         .requires_grad = input.defined() && input.requires_grad()});
    }
  }

  void run_first(const std::vector<at::Tensor>& inputs) {
    Run run{{.is_first = true, .results = results_}, *this};
    {
      const auto scope = entered(run);
      segment_->run(inputs);
    }
    state_.forget_unchanged_buffers();
    saved_ = run.saved;
    if (compares_outputs_) digests_ = digests_of(*segment_);
    complete_ = true;
  }

  /// For the hooks of the first forward. value() runs the segment if it does not have the tensor.
  at::Tensor value(std::size_t index) {
    const std::lock_guard lock(mutex_);
    if (index >= values_.size() || !values_[index].tensor.defined()) run_again();
    const auto kept = std::exchange(values_[index], {});
    kept.expect_unchanged();
    return kept.tensor;
  }
  void drop(std::size_t index) {
    const std::lock_guard lock(mutex_);
    if (index < values_.size()) values_[index] = {};
  }

  /// For the hooks of the second forward.
  void keep(std::size_t index, const at::Tensor& tensor) {
    if (index >= saved_) return;
    values_[index] = {.tensor = tensor.detach(), .version = version_of_saved(tensor)};
  }

 private:
  struct Input {
    SavedVariable saved;
    bool requires_grad;
  };

  void run_again() {
    if (!complete_ || runs_again_) {
      refuse_segment(
          "got a backward within the segment's forward that reaches the segment, expected it after "
          "the forward: call autograd::grad() outside of the segment");
    }
    values_.assign(saved_, {});
    runs_again_ = true;
    const auto end = c10::make_scope_exit([&] {
      runs_again_ = false;
      segment_->drop_outputs();
    });
    try {
      run_in_first_state();
    } catch (...) {
      values_.clear();
      throw;
    }
  }

  void run_in_first_state() {
    std::vector<at::Tensor> inputs;
    for (const auto& [saved, requires_grad] : inputs_) {
      auto input = saved.unpack();
      if (input.defined()) input = input.detach().set_requires_grad(requires_grad);
      inputs.push_back(std::move(input));
    }
    const at::AutoGradMode grad(true);
    const ForwardState before = state_.current();
    // Casts of parameters that the forward caches must not outlive it, because an optimizer may
    // change the parameters.
    at::autocast::increment_nesting();
    const auto restore_before = c10::make_scope_exit([&] {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      before.restore();
    });
    state_.restore();
    Run run{{.is_first = false, .results = results_}, *this};
    const auto scope = entered(run);
    segment_->run(inputs);
    if (run.saved != saved_) {
      refuse_segment(concat("got ", run.saved, " saved tensors in the second forward, expected ",
                            saved_,
                            " as in the first: the segment must depend on its inputs and "
                            "parameters only"));
    }
    if (compares_outputs_ && digests_of(*segment_) != digests_) {
      refuse_segment(
          "got other outputs from the second forward than from the first, expected the same bits: "
          "name the segment's own random generators in RecomputeOptions::generators, leave its "
          "parameters unchanged until the backward, and start ranks as processes if it has "
          "dropout, "
          "because threads share LibTorch's generator");
    }
  }

  std::shared_ptr<Segment> segment_;
  bool compares_outputs_;
  ForwardState state_;  ///< before the first forward
  std::vector<Input> inputs_;
  std::vector<std::any> results_;       ///< of once_per_forward() in the first forward
  std::vector<std::uint64_t> digests_;  ///< of the first forward's outputs
  std::size_t saved_ = 0;               ///< tensors that autograd saved in the first forward
  bool complete_ = false;               ///< the first forward has ended
  bool runs_again_ = false;
  std::vector<Kept> values_;    ///< of the second forward; each until the backward has used it
  std::recursive_mutex mutex_;  ///< autograd has a thread for each device
};

/// Hooks of a tensor that the first forward saved.
class FirstHooks final : public SavedVariableHooks {
 public:
  explicit FirstHooks(Run& run) : run_(&run), segment_(run.segment.shared_from_this()) {}
  ~FirstHooks() override {
    if (index_) segment_->drop(*index_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = run_->saved++;
    run_ = nullptr;
    // A parameter is in memory anyway.
    if (tensor.is_leaf() && tensor.requires_grad()) {
      leaf_ = {.tensor = tensor, .version = version_of_saved(tensor)};
    }
  }

  at::Tensor call_unpack_hook() override {
    if (!leaf_.tensor.defined()) return segment_->value(index_.value());
    leaf_.expect_unchanged();
    return leaf_.tensor;
  }

 private:
  Run* run_;  ///< until the tensor is packed, which follows at once
  std::shared_ptr<RecordedSegment> segment_;
  std::optional<std::size_t> index_;
  Kept leaf_ = {};
};

/// Hooks of a tensor that the second forward saved. Its graph runs no backward.
class SecondHooks final : public SavedVariableHooks {
 public:
  explicit SecondHooks(Run& run) : run_(run) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    run_.segment.keep(run_.saved++, tensor);
  }

  at::Tensor call_unpack_hook() override {
    refuse_segment(
        "got a backward of the segment's second forward, expected one of the first only: do not "
        "keep tensors of the segment outside of its outputs");
  }

 private:
  Run& run_;
};

/// LibTorch's engine, with hooks for the tensors that a segment saves.
class HookingEngine final : public Engine {
 public:
  explicit HookingEngine(Engine& engine) : engine_(engine) {}

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return engine_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return engine_.make_anomaly_metadata();
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto& runs = segment_runs();
    if (runs.empty()) return engine_.get_default_saved_variable_hooks();
    auto& run = static_cast<Run&>(*runs.back());
    if (run.is_first) return std::make_unique<FirstHooks>(run);
    return std::make_unique<SecondHooks>(run);
  }

 private:
  Engine& engine_;
};

Engine& hooking_engine() {
  // Never destroyed, because LibTorch may ask for the engine at the end of the process.
  static auto* const engine = new HookingEngine(Engine::get_default_engine());
  return *engine;
}

}  // namespace

std::vector<at::Tensor> buffers_of(const torch::nn::Module& module) { return module.buffers(); }

void run_recomputable(const std::shared_ptr<Segment>& segment,
                      const std::vector<at::Tensor>& inputs, RecomputeOptions options) {
  [[maybe_unused]] static const bool installed = [] {
    hooking_engine();  // finds the engine of before
    torch::autograd::set_default_engine_stub(&hooking_engine);
    return true;
  }();
  const auto recorded = std::make_shared<RecordedSegment>(segment, inputs, options);
  recorded->run_first(inputs);
}

}  // namespace lockstep::detail
