#include "parallel/replicated_model.h"

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_set>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/buffer_sync.h"
#include "parallel/consistency_check.h"
#include "parallel/reducer.h"
#include "parallel/shared_memory.h"

namespace lockstep::inline v0_2 {
namespace detail {
namespace {

/// Units: bytes. Bounds the memory that a broadcast takes beside the model.
constexpr std::size_t most_at_once = std::size_t{32} << 20;

std::vector<NamedTensor> unique(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> seen;
  for (const auto& entry : named) {
    if (seen.insert(entry.value().unsafeGetTensorImpl()).second) {
      tensors.push_back({.name = entry.key(), .tensor = entry.value()});
    }
  }
  return tensors;
}

std::string line(std::string_view kind, const NamedTensor& named, bool with_values) {
  const auto& tensor = named.tensor;
  auto text =
      concat(kind, ' ', named.name, ' ', toString(tensor.scalar_type()), ' ', tensor.sizes());
  // Gradients lie in memory as their parameters do.
  if (!tensor.is_contiguous()) text += concat(" strides ", tensor.strides());
  if (kind == "parameter" && !tensor.requires_grad()) text += " frozen";
  if (with_values) text += concat(" values ", std::hex, checksum(tensor));
  return text;
}

}  // namespace

ModelState::ModelState(const torch::nn::Module& module)
    : parameters(unique(module.named_parameters())), buffers(unique(module.named_buffers())) {}

std::vector<std::string> describe(const ModelState& state, bool with_values) {
  std::vector<std::string> lines;
  for (const auto& named : state.parameters) lines.push_back(line("parameter", named, with_values));
  for (const auto& named : state.buffers) lines.push_back(line("buffer", named, with_values));
  return lines;
}

void broadcast(const ModelState& state, const Group& group, int root) {
  std::vector<at::Tensor> together;
  std::size_t bytes = 0;
  const auto send = [&] {
    Bundle bundle(std::move(together), group);
    bundle.begin_broadcast(root);
    bundle.end();
    together.clear();
    bytes = 0;
  };
  for (const auto* tensors : {&state.parameters, &state.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (bytes > 0 && bytes + tensor.nbytes() > most_at_once) send();
      together.push_back(tensor);
      bytes += tensor.nbytes();
    }
  }
  if (!together.empty()) send();
}

}  // namespace detail

void broadcast_parameters(const torch::nn::Module& module, const Group& group, int root) {
  const detail::ModelState state(module);
  detail::agree(group, "broadcast_parameters", detail::describe(state, false));
  detail::broadcast(state, group, root);
}

NoSync::NoSync(std::shared_ptr<detail::Reducer> reducer) : reducer_(std::move(reducer)) {
  reducer_->pause();
}

NoSync::~NoSync() {
  if (reducer_) reducer_->resume();
}

namespace detail {
namespace {

const char* name(Source::Owner front_end) {
  return front_end == Source::Owner::distributed_optimizer ? "DistributedOptimizer"
                                                           : "DistributedDataParallel";
}

Source new_source(const Group& group, Source::Owner front_end) {
  return {.owner = front_end,
          .content = Source::Content::model,
          .number = group.communicator().number_owner()};
}

const char* name(BufferPolicy policy) {
  switch (policy) {
    case BufferPolicy::from_rank0:
      return "from_rank0";
    case BufferPolicy::average:
      return "average";
    case BufferPolicy::none:
      return "none";
  }
  return "unknown";
}

/// Whether there can be one copy of the parameters for all ranks.
void check_shareable(const ModelState& model, const Group& group,
                     const DataParallelOptions& options, Source::Owner front_end) {
  if (front_end == Source::Owner::distributed_data_parallel) {
    throw InvalidArgument(
        "share_memory: every rank would update the one copy: use DistributedOptimizer, which has "
        "each update a part");
  }
  if (options.strategy.text() != AllReduce{}.text()) {
    throw InvalidArgument(concat("share_memory: got strategy ", options.strategy.text(),
                                 ", expected ", AllReduce{}.text()));
  }
  if (!shares_memory(group)) {
    throw InvalidArgument(concat("share_memory: got ranks on the ", group.communicator().backend(),
                                 " backend, expected all on one host, on the host backend"));
  }
  for (const auto& [name, tensor] : model.parameters) {
    if (!tensor.requires_grad() || tensor.storage().use_count() == 1) continue;
    throw InvalidArgument(concat("share_memory: parameter ", name,
                                 " has its memory in common with another tensor, expected it to "
                                 "have it for itself: it is to be moved"));
  }
}

void check(const torch::nn::Module* module, const Group& group, const DataParallelOptions& options,
           Source::Owner front_end) {
  if (module == nullptr) throw InvalidArgument("got no model");
  if (front_end == Source::Owner::distributed_data_parallel &&
      !options.strategy.exchanges_every_gradient()) {
    throw InvalidArgument(concat("strategy ", options.strategy.text(),
                                 " does not average every gradient at every step: use "
                                 "DistributedOptimizer, which also exchanges parameters"));
  }
  if (options.verify_every < 0) {
    throw InvalidArgument(
        concat("verify_every: got ", options.verify_every, ", expected 0 for never, or more"));
  }
  const ModelState model(*module);
  Reducer::check(model, group);
  if (options.share_memory) check_shareable(model, group, options, front_end);
}

/// The properties that must be equal on all ranks. A rank that cannot go on puts its error there,
/// so that all ranks learn of it and none waits for it.
std::vector<std::string> describe_all(const torch::nn::Module* module, const Group& group,
                                      const DataParallelOptions& options, Source::Owner front_end) {
  try {
    check(module, group, options, front_end);
  } catch (const InvalidArgument& error) {
    return {concat("an error: ", error.what())};
  }
  const bool same_seed = options.initial_sync == InitialSync::same_seed;
  auto lines = describe(ModelState(*module), same_seed);
  lines.push_back(concat("options strategy ", options.strategy.text(), ", buckets of ",
                         options.buckets.first, " and ", options.buckets.rest, " bytes, ",
                         same_seed ? "same_seed" : "broadcast", ", buffers ",
                         name(options.buffer_policy), ", verify_every ", options.verify_every,
                         options.share_memory ? ", share_memory" : ""));
  return lines;
}

/// Gives access to the parameters that a module itself holds. Module::parameters() joins names on
/// the way, which takes longer than everything else in check_unchanged().
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

/// Calls fn with each parameter, in the order of Module::parameters().
template <class Fn>
void for_each_parameter(const torch::nn::Module& module, const Fn& fn) {
  for (const auto& parameter : OwnParameters::of(module)) {
    if (parameter.value().defined()) fn(parameter.value());
  }
  for (const auto& child : module.children()) for_each_parameter(*child, fn);
}

}  // namespace

ReplicatedModel::ReplicatedModel(std::shared_ptr<torch::nn::Module> module, const Group& group,
                                 const DataParallelOptions& options, Source::Owner front_end)
    : module_(std::move(module)),
      group_(group),
      where_(name(front_end)),
      source_(new_source(group, front_end)) {
  const SourceScope scope(group.communicator(), source_);
  agree(group, where_, describe_all(module_.get(), group, options, front_end));
  try {
    check(module_.get(), group, options, front_end);
    const ModelState model(*module_);
    // Before the exchanges are made: they may remember the parameters.
    if (options.initial_sync == InitialSync::broadcast) broadcast(model, group, 0);
    reducer_ = Reducer::create(model, group, options, source_);
    for (const auto& named : model.parameters) {
      known_.push_back({.named = named,
                        .dtype = named.tensor.scalar_type(),
                        .trainable = named.tensor.requires_grad()});
    }
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        concat(where_, " rank ", group.rank(), " of ", group.size(), ": ", error.what()),
        {.rank = error.rank(), .operation = where_});
  } catch (const std::exception& error) {
    group.communicator().fail(concat(where_, ": ", error.what()));
    throw;
  }
}

void ReplicatedModel::check_unchanged() const {
  const auto fail = [this](const auto&... what) {
    throw InvalidArgument(concat(where_, ": ", what...,
                                 " since the model was wrapped: wrap it again after changing it"),
                          {.operation = where_});
  };
  auto known = known_.begin();
  for_each_parameter(*module_, [&](const at::Tensor& parameter) {
    // A tensor that is listed again under a second name.
    const auto same = [&](const Known& other) { return other.named.tensor.is_same(parameter); };
    if (known == known_.end() || !same(*known)) {
      if (std::any_of(known_.begin(), known, same)) return;
      fail("the list of parameters has changed at #", known - known_.begin());
    }
    if (parameter.scalar_type() != known->dtype) {
      fail("parameter ", known->named.name, " has become ", toString(parameter.scalar_type()));
    }
    if (parameter.requires_grad() && !known->trainable) {
      fail("parameter ", known->named.name, " was frozen, and has come to require a gradient");
    }
    ++known;
  });
  if (known != known_.end()) fail("parameter ", known->named.name, " has gone");
}

void ReplicatedModel::begin_forward() const {
  check_unchanged();
  reducer_->follow_accumulators();
}

void ReplicatedModel::refuse_output(const std::type_info& type) const {
  const auto name = c10::demangle(type.name());
  throw InvalidArgument(
      concat(where_, " rank ", group_.rank(), " of ", group_.size(), ": forward returned ", name,
             ", expected a tensor, or tuples, ranges, dictionaries, optionals, pointers or "
             "variants of "
             "tensors: declare `void visit_tensors(const ",
             name,
             "& output, const auto& visit)` in its namespace, which calls visit with every tensor "
             "of the "
             "output, or train with DistributedOptimizer, which needs no output"),
      {.operation = where_});
}

void ReplicatedModel::watch(const at::Tensor& output) const { reducer_->watch(output); }

}  // namespace detail

}  // namespace lockstep
