#include "lockstep/distributed_optimizer.h"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "group/instances.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "parallel/agree.h"
#include "parallel/reducer/model_state.h"
#include "parallel/reducer/reducer.h"
#include "parallel/shared_memory.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"
#include "parallel/update/update.h"

namespace lockstep::inline v0_2::detail {
namespace {

IsOptimized is_optimized_by(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> parameters;
  for (const auto& parameter : all_parameters(optimizer))
    parameters.insert(parameter.unsafeGetTensorImpl());
  return [parameters = std::move(parameters)](const at::Tensor& parameter) {
    return parameters.contains(parameter.unsafeGetTensorImpl());
  };
}

/// The parameter groups of the parameters in buckets, for a comparison between ranks.
std::vector<std::string> describe_groups(const torch::optim::Optimizer& optimizer,
                                         Reducer& reducer) {
  std::unordered_map<const void*, std::size_t> groups;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const auto& parameter : optimizer.param_groups()[g].params())
      groups[parameter.unsafeGetTensorImpl()] = g;
  }
  std::vector<std::string> lines;
  for (const auto& of_bucket : reducer.bucket_reducers()) {
    for (const auto& slice : of_bucket.bucket.slices()) {
      const auto group = groups.find(slice.parameter.unsafeGetTensorImpl());
      lines.push_back(concat("parameter ", slice.name, " in "));
      lines.back() +=
          group == groups.end() ? "no parameter group" : concat("parameter group ", group->second);
    }
  }
  return lines;
}

}  // namespace

void Update::check(const torch::optim::Optimizer& optimizer, const ModelView& model,
                   const DataParallelOptions& options) {
  const bool shares = shares_memory(options);
  // Of such parameters, .grad() is not the mean, or all ranks write the same memory.
  if (model && !options.optimized_only && (shares || options.shard == Shard::gradients)) {
    const auto is_optimized = is_optimized_by(optimizer);
    for (const auto& [name, parameter] : model.parameters()) {
      if (!parameter.requires_grad() || is_optimized(parameter)) continue;
      throw InvalidArgument(
          concat(shares ? "share_memory" : "shard = Shard::gradients", ": parameter ", name,
                 " is not in the optimizer, expected all that require a gradient: add it to the "
                 "optimizer, freeze it, construct the DistributedOptimizer with the model and "
                 "optimized_only, or ",
                 shares ? "set share_memory = false" : "set another shard"));
    }
  }
  if (shares) {
    if (const auto* own = dynamic_cast<const ElementwiseOptimizer*>(&optimizer))
      return own->check_shareable();
    check_elementwise(optimizer, "share_memory");
  } else if (options.shard != Shard::none) {
    check_elementwise(optimizer, "shard");
  }
}

std::unique_ptr<Update> Update::create(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                       const Group& group, const DataParallelOptions& options) {
  const bool shares = shares_memory(options);
  reducer.watch_own_steps([&optimizer] { return marks_of(optimizer); }, options.shard);
  if (!shares && options.shard == Shard::none) return std::make_unique<Update>(optimizer, reducer);
  // Each rank would update its part of a parameter with other options, or not at all.
  agree(group, "DistributedOptimizer", describe_groups(optimizer, reducer));
  reducer.compare_options([&optimizer] { return options_of(optimizer); });
  // With one copy of everything, shard has no effect.
  if (shares) return shared_update(optimizer, reducer, group);
  return std::make_unique<ShardedParameters>(optimizer, reducer, group);
}

void Update::step() {
  reducer_.before_update();
  optimizer_.step();
}

at::Tensor Update::step(const std::function<at::Tensor()>& evaluate) {
  return optimizer_.step(evaluate);
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {
namespace {

/// Checks that the optimizer has each parameter once, and that the model has all of them. Others
/// would be updated by each rank's own gradient.
void check_parameters(const torch::optim::Optimizer& optimizer, const ModelView& model,
                      const Group& group) {
  all_or_none(group, [&] {
    if (!model) return;  // ReplicatedModel refuses it
    const auto named = model.parameters();
    detail::check_listed_once(optimizer, "DistributedOptimizer", named);
    std::unordered_set<const void*> of_model;
    for (const auto& [name, tensor] : named) of_model.insert(tensor.unsafeGetTensorImpl());
    const auto parameters = detail::all_parameters(optimizer);
    const auto other = std::ranges::find_if_not(parameters, [&](const at::Tensor& parameter) {
      return of_model.contains(parameter.unsafeGetTensorImpl());
    });
    if (other == parameters.end()) return;
    detail::throw_invalid("DistributedOptimizer", "parameter #", other - parameters.begin(),
                          " of the optimizer, of sizes ", other->sizes(),
                          ", is not a parameter of the model");
  });
}

std::shared_ptr<detail::ReplicatedModel> replicate(const torch::optim::Optimizer& optimizer,
                                                   const ModelView& model, const Group& group,
                                                   const DataParallelOptions& options) {
  check_parameters(optimizer, model, group);
  all_or_none(group, [&] { detail::Update::check(optimizer, model, options); });
  return std::make_shared<detail::ReplicatedModel>(model, group, options,
                                                   detail::is_optimized_by(optimizer));
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const ModelView& model, const Group& group,
                                           const DataParallelOptions& options)
    : DistributedOptimizer(optimizer, replicate(optimizer, model, group, options)) {}

std::shared_ptr<detail::ReplicatedModel> DistributedOptimizer::checked(
    const torch::optim::Optimizer& optimizer, std::shared_ptr<detail::ReplicatedModel> wrapped) {
  check_parameters(optimizer, wrapped->model(), wrapped->group());
  all_or_none(wrapped->group(), [&] {
    detail::Update::check(optimizer, wrapped->model(), wrapped->options());
    wrapped->reducer().check_unattached();
    wrapped->check_movable();
  });
  return wrapped;
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::shared_ptr<detail::ReplicatedModel> model)
    : optimizer_(optimizer), model_(std::move(model)) {
  const auto& group = model_->group();
  model_->reducer().attach_optimizer(detail::is_optimized_by(optimizer));
  try {
    update_ = detail::Update::create(optimizer, model_->reducer(), group, model_->options());
  } catch (const std::exception& error) {
    model_->reducer().detach_optimizer();
    const bool is_on_every_rank = dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
                                  dynamic_cast<const CheckpointError*>(&error) != nullptr;
    if (!is_on_every_rank)
      group.communicator().fail(detail::concat("DistributedOptimizer: ", error.what()));
    throw;
  }
  detail::Instances<DistributedOptimizer>::all().list.push_back(this);
}

DistributedOptimizer::~DistributedOptimizer() {
  std::erase(detail::Instances<DistributedOptimizer>::all().list, this);
  model_->reducer().detach_optimizer();
}

bool DistributedOptimizer::has(const torch::optim::Optimizer& optimizer) {
  const auto all = detail::Instances<DistributedOptimizer>::all();
  return std::ranges::any_of(all.list,
                             [&](const auto* one) { return &one->optimizer_ == &optimizer; });
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const ModelView& model, const Group& group,
                                           Strategy strategy)
    : DistributedOptimizer(optimizer, model, group,
                           DataParallelOptions{.strategy = std::move(strategy)}) {}

void DistributedOptimizer::check_unchanged() {
  model_->check_unchanged();
  model_->reducer().buffers().check_tensors();
  std::size_t index = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& parameter : group.params()) {
      const void* const own = parameter.unsafeGetTensorImpl();
      if (index == parameters_.size()) parameters_.push_back(nullptr);
      if (own != parameters_[index] && !model_->wraps(parameter)) {
        detail::throw_invalid("DistributedOptimizer", "parameter #", index,
                              " of the optimizer, of sizes ", parameter.sizes(),
                              ", was added after the construction, and the model that was wrapped "
                              "lacks it, so that its gradient is not averaged: construct the "
                              "DistributedOptimizer after the last parameter is added");
      }
      parameters_[index++] = own;
    }
  }
}

void DistributedOptimizer::backward_and_update(const at::Tensor& loss) {
  const auto product = update_->product();
  // The program reads no .grad() before the update.
  const detail::Reducer::Request request(model_->reducer(), product);
  const auto graph = !loss.defined()        ? detail::LossGraph::no_loss
                     : loss.requires_grad() ? detail::LossGraph::some
                                            : detail::LossGraph::none;
  auto& reducer = model_->reducer();
  reducer.end_own_step_check();
  if (graph == detail::LossGraph::some) loss.backward();
  detail::as_operation("DistributedOptimizer", [&] {
    check_unchanged();
    if (product == detail::Product::none) {
      reducer.hook_new_accumulators();
      if (graph == detail::LossGraph::some) reducer.end_local_backward(loss);
    } else {
      reducer.average_local_gradients(graph);
      reducer.refuse_late_weights();
    }
    update();
  });
  zero_grad();
}

void DistributedOptimizer::step() {
  detail::as_operation("DistributedOptimizer", [&] {
    check_unchanged();
    model_->reducer().average_local_gradients();
    model_->reducer().refuse_late_weights();
    update();
  });
}

at::Tensor DistributedOptimizer::step(const std::function<at::Tensor()>& closure) {
  return detail::as_operation("DistributedOptimizer", [&] {
    const bool shares = detail::shares_memory(model_->options());
    if (replicas_may_differ() || shares) {
      throw InvalidArgument(detail::concat(
          "DistributedOptimizer: step(closure): got ",
          shares ? "share_memory" : "a strategy that does not average every gradient",
          ", expected gradients that are averaged in every backward, because the optimizer's "
          "decisions must be the same on every rank: use another strategy, such as fp32, without "
          "share_memory"));
    }
    check_unchanged();
    auto& reducer = model_->reducer();
    auto loss = update_->step([&] {
      const auto own_loss = closure();
      reducer.average_local_gradients();
      reducer.refuse_late_weights();
      return reducer.mean_of_losses(own_loss);
    });
    reducer.exchange_parameters();
    return loss;
  });
}

void DistributedOptimizer::average_gradients() {
  detail::as_operation("DistributedOptimizer", [&] {
    check_unchanged();
    model_->reducer().average_local_gradients();
  });
}

void DistributedOptimizer::update() {
  update_->step();
  model_->reducer().exchange_parameters();
}

NoSync DistributedOptimizer::no_sync() const { return model_->no_sync(); }

void DistributedOptimizer::zero_grad(bool set_to_none) {
  optimizer_.zero_grad(set_to_none);
  if (const auto* const sharded = detail::ShardedParameters::of(optimizer_))
    sharded->zero_grad(set_to_none);
}

void DistributedOptimizer::synchronize() { model_->reducer().average_parameters(); }

bool DistributedOptimizer::replicas_may_differ() const {
  return model_->reducer().parameters_may_differ();
}

void DistributedOptimizer::weight(double samples) { model_->set_weight(samples); }

const Group& DistributedOptimizer::group() const { return model_->group(); }

State DistributedOptimizer::state() const { return model_->state(); }

void DistributedOptimizer::load_state(const State& state) {
  detail::as_operation("load_state", [&] { model_->load_state(state); });
}

}  // namespace lockstep
