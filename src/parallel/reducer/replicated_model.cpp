#include <c10/util/Type.h>

#include <algorithm>
#include <exception>
#include <string>

#include "comm/communicator.h"
#include "core/enum_names.h"
#include "core/environment.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/buckets/bucket_plan.h"
#include "parallel/reducer/buffer_sync.h"
#include "parallel/reducer/model_state.h"
#include "parallel/reducer/reducer.h"
#include "parallel/shared_memory.h"

namespace lockstep::inline v0_2 {

BucketCaps default_buckets() {
  BucketCaps caps;
  try {
    // Options may be constructed before main(), so this does not fix the environment for init().
    if (const auto mib = Environment::read().bucket_mib) {
      caps.rest = static_cast<std::size_t>(*mib) << 20;
      caps.first = std::min(caps.first, caps.rest);
    }
  } catch (const InvalidArgument&) {
    // init() reports it.
  }
  return caps;
}

NoSync::NoSync(std::shared_ptr<detail::Reducer> reducer) : reducer_(std::move(reducer)) {
  reducer_->pause();
}

NoSync::~NoSync() {
  if (reducer_) reducer_->resume();
}

namespace detail {
namespace {

constexpr EnumNames<Shard::gradients> shards("none", "optimizer", "gradients");

constexpr EnumNames<BufferPolicy::none> policies("from_rank0", "average", "none");

/// Checks that the parameters can be moved to other memory.
void check_movable(const ModelState& model, const char* option) {
  for (const auto& [name, tensor] : trainable(model, GradientLayout::dense)) {
    if (tensor.storage().use_count() == 1) continue;
    throw InvalidArgument(concat(option, ": parameter ", name,
                                 " shares its memory with another tensor, expected memory of its "
                                 "own, because ",
                                 option, " moves every parameter: clone() it"));
  }
}

/// Checks that the training state can be divided among the ranks.
void check_shardable(const Group& group, Shard shard, const ParameterStrategies& strategies) {
  if (!group.device().is_cpu()) {
    throw InvalidArgument(concat("shard: got a group of ", group.device().type(),
                                 " devices, expected one on the CPU: set shard = Shard::none"));
  }
  if (!strategies.exchanges_every_gradient()) {
    throw InvalidArgument(concat("shard: got strategy ", strategies.text(),
                                 ", which does not average every gradient at every step, expected "
                                 "one that does, such as fp32, or shard = Shard::none"));
  }
  for (std::size_t i = 0; i < strategies.size() && shard == Shard::gradients; ++i) {
    const Bucket empty(0, 0, at::kFloat, {}, group);
    if (strategies[i].exchange(empty)->has_parts()) continue;
    const auto strategy = strategies[i].text();
    throw InvalidArgument(concat("shard: got strategy ", strategy,
                                 " with Shard::gradients, expected fp32, fp16 or bf16; "
                                 "Shard::optimizer works with ",
                                 strategy, ", too"));
  }
}

/// Checks that share_memory is possible.
void check_shareable(const ModelState& model, const Group& group,
                     const DataParallelOptions& options, const ParameterStrategies& strategies) {
  if (strategies.text() != AllReduce{}.text()) {
    throw InvalidArgument(concat("share_memory: got strategy ", strategies.text(), ", expected ",
                                 AllReduce{}.text()));
  }
  if (!group.device().is_cpu()) {
    throw InvalidArgument(
        concat("share_memory: got a group of ", group.device().type(),
               " devices, expected one on the CPU: ranks cannot update each other's "
               "memory of a device; set share_memory = false"));
  }
  if (group.nodes() == 1) check_shares_memory(group);  // else the group of each host is checked
  if (options.shard == Shard::gradients) {
    throw InvalidArgument(
        "share_memory: got shard = Shard::gradients, expected Shard::none or Shard::optimizer: "
        "every rank keeps its own gradients for the others to read");
  }
  if (const auto sparse = trainable(model, GradientLayout::sparse); !sparse.empty()) {
    throw InvalidArgument(concat("share_memory: parameter ", sparse.front().name,
                                 " has sparse gradients, expected dense ones: set sparse = false "
                                 "in its layer, or set share_memory = false"));
  }
}

UpdateNeeds needs_of(const DataParallelOptions& options) {
  // With one copy of everything, shard has no effect.
  if (shares_memory(options)) return {.option = "share_memory"};
  if (options.shard == Shard::none) return {};
  return {.option = "shard",
          .parts = options.shard == Shard::gradients ? PartMemory::own : PartMemory::bucket};
}

ModelState state_of(const ModelView& model, const DataParallelOptions& options,
                    const IsOptimized& is_optimized = nullptr) {
  ModelState state(model);
  state.declare_sparse(options.sparse_gradients);
  if (options.optimized_only) state.keep_optimized(is_optimized);
  return state;
}

/// The state of a model that can be wrapped.
ModelState checked(const ModelView& model, const Group& group, const DataParallelOptions& options,
                   const IsOptimized& is_optimized) {
  if (!model) throw InvalidArgument("got no model");
  if (!is_optimized && options.optimized_only) {
    throw InvalidArgument(
        "optimized_only: got DistributedDataParallel, which has no optimizer, expected "
        "DistributedOptimizer: DistributedDataParallel averages all gradients, and any number of "
        "optimizers may step after its backward");
  }
  const ParameterStrategies strategies(options);
  if (!is_optimized && !strategies.exchanges_every_gradient()) {
    throw InvalidArgument(concat("strategy ", strategies.text(),
                                 " does not average every gradient at every step: use "
                                 "DistributedOptimizer, which also exchanges parameters"));
  }
  if (options.verify_every && *options.verify_every < 0) {
    throw InvalidArgument(
        concat("verify_every: got ", *options.verify_every, ", expected 0 for never, or more"));
  }
  auto state = state_of(model, options, is_optimized);
  check_trainable(state, group);
  strategies.check_patterns(state.parameters);
  if (shares_memory(options)) {
    check_shareable(state, group, options, strategies);
  } else if (options.shard != Shard::none) {
    check_shardable(group, options.shard, strategies);
  }
  if (const auto* const option = needs_of(options).option) check_movable(state, option);
  return state;
}

/// The properties that must be equal on all ranks. A rank whose check fails returns its error
/// instead, so that all ranks report it and none waits for that rank.
std::vector<std::string> describe_all(const ModelView& model, const Group& group,
                                      const DataParallelOptions& options,
                                      const IsOptimized& is_optimized) {
  const bool same_seed = options.initial_sync == InitialSync::same_seed;
  std::vector<std::string> lines;
  try {
    lines = describe(checked(model, group, options, is_optimized), same_seed);
  } catch (const InvalidArgument& error) {
    return {concat("an error: ", error.what())};
  }
  lines.push_back(concat(
      "options strategy ", ParameterStrategies(options).text(), ", buckets of ",
      options.buckets.first, " and ", options.buckets.rest, " bytes, ",
      same_seed ? "same_seed" : "broadcast", ", buffers ", policies.of(options.buffer_policy),
      ", verify_every ", options.verify_every ? std::to_string(*options.verify_every) : "default",
      ", shard ", shards.of(options.shard), shares_memory(options) ? ", share_memory" : "",
      options.optimized_only ? ", optimized_only" : "",
      options.check_finite ? ", check_finite" : ""));
  return lines;
}

}  // namespace

ReplicatedModel::ReplicatedModel(ModelView model, const Group& group,
                                 const DataParallelOptions& options,
                                 const IsOptimized& is_optimized)
    : model_(std::move(model)),
      group_(group),
      options_(options),
      operation_(is_optimized ? "DistributedOptimizer" : "DistributedDataParallel") {
  Source source{.owner = is_optimized ? Source::Owner::distributed_optimizer
                                      : Source::Owner::distributed_data_parallel,
                .content = Source::Content::model};
  const SourceScope scope(group.communicator(), source);
  std::int64_t number = group.communicator().last_owner();
  agree(group, operation_, describe_all(model_, group, options, is_optimized), &number);
  source.number = static_cast<std::uint16_t>(number + 1);
  group.communicator().set_last_owner(source.number);
  group.communicator().set_source(source);
  try {
    const auto state = checked(model_, group, options, is_optimized);
    options_.share_memory = shares_memory(options);
    // Before the exchanges are constructed: they may copy the parameters.
    if (options.initial_sync == InitialSync::broadcast) broadcast(state, group, 0);
    reducer_ = std::make_shared<Reducer>(state, group, options, needs_of(options), source);
    for (const auto& named : state.parameters) {
      wrapped_.push_back({.named = named,
                          .dtype = named.tensor.scalar_type(),
                          .trainable = named.tensor.requires_grad()});
    }
    reducer_->set_model_check([this] { check_unchanged(); });
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(at_rank(operation_, group, error.what()),
                          {.rank = error.rank(), .operation = operation_});
  } catch (const std::exception& error) {
    group.communicator().fail(concat(operation_, ": ", error.what()));
    throw;
  }
}

ReplicatedModel::~ReplicatedModel() { reducer_->set_model_check(nullptr); }

void ReplicatedModel::check_unchanged() const {
  const auto fail = [this](const auto&... what) {
    throw InvalidArgument(concat(operation_, ": ", what...,
                                 " since the model was wrapped: wrap it again after changing it"),
                          {.operation = operation_});
  };
  auto wrapped = wrapped_.begin();
  const auto check = [&](const at::Tensor& parameter) {
    // A tensor that the model lists again under a second name is skipped.
    const auto same = [&](const Wrapped& other) { return other.named.tensor.is_same(parameter); };
    if (wrapped == wrapped_.end() || !same(*wrapped)) {
      if (std::any_of(wrapped_.begin(), wrapped, same)) return;
      fail("the list of parameters has changed at #", wrapped - wrapped_.begin());
    }
    if (parameter.scalar_type() != wrapped->dtype) {
      fail("parameter ", wrapped->named.name, " was converted to ",
           toString(parameter.scalar_type()));
    }
    if (parameter.requires_grad() && !wrapped->trainable) {
      fail("parameter ", wrapped->named.name, " was frozen and now requires a gradient");
    }
    ++wrapped;
  };
  if (options_.optimized_only) {  // the model has others, which may change
    for (const auto& own : wrapped_) check(own.named.tensor);
  } else {
    model_.tensors().for_each_parameter(check);
  }
  if (wrapped != wrapped_.end()) fail("parameter ", wrapped->named.name, " was removed");
}

bool ReplicatedModel::wraps(const at::Tensor& parameter) const {
  return std::ranges::any_of(
      wrapped_, [&](const Wrapped& wrapped) { return wrapped.named.tensor.is_same(parameter); });
}

std::shared_ptr<ForwardGraph> ReplicatedModel::begin_forward() const {
  check_unchanged();
  reducer_->check_optimizer();
  reducer_->hook_new_accumulators();
  if (reducer_->buffers().take_unused_graph()) {
    log::notice(at_rank(operation_, group_,
                        "got a forward with gradients that no backward followed, expected a "
                        "backward, or a forward under NoGradGuard (detach() of its output is too "
                        "late): if another rank has run that "
                        "backward, the ranks average gradients of different steps from there on"));
  }
  return reducer_->buffers().begin_graph();
}

void ReplicatedModel::check_movable() const {
  if (const auto* const option = needs_of(options_).option)
    detail::check_movable(state_of(model_, options_), option);
}

void ReplicatedModel::refuse_output(const std::type_info& type) const {
  const auto name = c10::demangle(type.name());
  throw invalid_in(
      operation_, group_, "forward returned ", name,
      ", expected a tensor, or tuples, ranges, dictionaries, optionals, pointers or variants of "
      "tensors: declare `void visit_tensors(const ",
      name,
      "& output, const auto& visit)` in its namespace, which calls visit with every tensor of the "
      "output, or train with DistributedOptimizer, which needs no output");
}

void ReplicatedModel::watch(const at::Tensor& output,
                            const std::shared_ptr<ForwardGraph>& graph) const {
  reducer_->watch(output, graph);
}

void ReplicatedModel::write_buffers() const { reducer_->buffers().prepare_forward(); }

void ReplicatedModel::set_weight(double samples) const {
  if (!reducer_->take_weights()) {
    throw InvalidArgument(
        at_rank(operation_, group_, "got a weight of ", samples, " with strategy ",
                ParameterStrategies(options_).text(),
                ", which does not average every gradient at every step, expected none: omit "
                "weight(), or use a strategy that averages gradients, such as fp32"),
        {.operation = "weight"});
  }
  reducer_->set_weight(samples);
}

State ReplicatedModel::state() const { return reducer_->state(); }

void ReplicatedModel::load_state(const State& state) const { reducer_->load(state); }

}  // namespace detail
}  // namespace lockstep
