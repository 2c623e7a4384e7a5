#include "lockstep/distributed_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <exception>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "parallel/reducer/reducer.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_update.h"
#include "parallel/update/shared_update.h"
#include "parallel/update/update.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The optimizer's own step, on every rank.
class WholeUpdate final : public Update {
 public:
  WholeUpdate(torch::optim::Optimizer& optimizer, Reducer& reducer)
      : optimizer_(optimizer), reducer_(reducer) {}

  void step(UpdateGradients /*gradients*/) override {
    reducer_.before_update();
    optimizer_.step();
  }
  at::Tensor step(const std::function<at::Tensor()>& evaluate) override {
    return optimizer_.step(evaluate);
  }

 private:
  torch::optim::Optimizer& optimizer_;
  Reducer& reducer_;
};

}  // namespace

void Update::check(const torch::optim::Optimizer& optimizer, const DataParallelOptions& options) {
  if (options.share_memory) {
    SharedUpdate::check(optimizer);
  } else if (options.shard != Shard::none) {
    check_elementwise(optimizer, "shard");
  }
}

std::unique_ptr<Update> Update::create(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                       const Group& group, const DataParallelOptions& options) {
  // With one copy of everything, shard has no effect.
  if (options.share_memory) return std::make_unique<SharedUpdate>(reducer, group, optimizer);
  if (options.shard != Shard::none)
    return std::make_unique<ShardedUpdate>(reducer, group, optimizer);
  return std::make_unique<WholeUpdate>(optimizer, reducer);
}

at::Tensor Update::step(const std::function<at::Tensor()>& evaluate) {
  auto loss = evaluate();
  step(UpdateGradients::averaged);
  return loss;
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {
namespace {

std::unordered_set<const void*> addresses_of_parameters(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> parameters;
  for (const auto& parameter : detail::all_parameters(optimizer))
    parameters.insert(parameter.unsafeGetTensorImpl());
  return parameters;
}

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
    std::size_t index = 0;
    for (const auto& parameter : detail::all_parameters(optimizer)) {
      if (!of_model.contains(parameter.unsafeGetTensorImpl())) {
        detail::throw_invalid("DistributedOptimizer", "parameter #", index,
                              " of the optimizer, of sizes ", parameter.sizes(),
                              ", is not a parameter of the model");
      }
      ++index;
    }
  });
}

/// The parameters that the optimizer updates, and all buffers.
ModelView optimized_part(const torch::optim::Optimizer& optimizer, const ModelView& model) {
  const auto optimized = addresses_of_parameters(optimizer);
  auto parameters = model.parameters();
  std::erase_if(parameters, [&](const NamedTensor& named) {
    return !optimized.contains(named.tensor.unsafeGetTensorImpl());
  });
  return ModelView(std::move(parameters), model.buffers());
}

std::shared_ptr<detail::ReplicatedModel> replicate(const torch::optim::Optimizer& optimizer,
                                                   const ModelView& model, const Group& group,
                                                   DataParallelOptions options) {
  check_parameters(optimizer, model, group);
  all_or_none(group, [&] { detail::Update::check(optimizer, options); });
  const auto make = [&](const ModelView& wrapped) {
    return std::make_shared<detail::ReplicatedModel>(wrapped, group, options,
                                                     detail::FrontEnd::distributed_optimizer);
  };
  if (!options.optimized_only || !model) return make(model);
  const auto part = optimized_part(optimizer, model);
  // A list of tensors does not tell which of them belong to sparse layers.
  detail::ModelState all(model);
  all.declare_sparse(options.sparse_gradients);
  options.sparse_gradients.clear();
  for (const auto& named : part.parameters()) {
    if (all.has_sparse_gradient(named.tensor)) options.sparse_gradients.push_back(named.name);
  }
  return make(part);
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
    detail::Update::check(optimizer, wrapped->options());
    wrapped->reducer().check_unattached();
    wrapped->check_movable();
  });
  return wrapped;
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::shared_ptr<detail::ReplicatedModel> model)
    : optimizer_(optimizer), model_(std::move(model)) {
  const auto& group = model_->group();
  model_->reducer().attach_optimizer(
      [parameters = addresses_of_parameters(optimizer)](const auto& parameter) {
        return parameters.contains(parameter.unsafeGetTensorImpl());
      });
  try {
    update_ = detail::Update::create(optimizer, model_->reducer(), group, model_->options());
  } catch (const InvalidArgument&) {
    model_->reducer().detach_optimizer();
    throw;  // on every rank
  } catch (const std::exception& error) {
    model_->reducer().detach_optimizer();
    group.communicator().fail(detail::concat("DistributedOptimizer: ", error.what()));
    throw;
  }
}

DistributedOptimizer::~DistributedOptimizer() { model_->reducer().detach_optimizer(); }

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const ModelView& model, const Group& group,
                                           Strategy strategy)
    : DistributedOptimizer(optimizer, model, group,
                           DataParallelOptions{.strategy = std::move(strategy)}) {}

void DistributedOptimizer::backward_and_update(const at::Tensor& loss) {
  const auto product = update_->product();
  // The program reads no .grad() before the update.
  const auto request = model_->reducer().request(product);
  if (loss.defined() && loss.requires_grad()) loss.backward();
  if (product == detail::Product::none) {
    detail::as_operation("DistributedOptimizer", [&] {
      model_->check_unchanged();
      model_->reducer().hook_new_accumulators();
      if (loss.defined() && loss.requires_grad()) model_->reducer().end_local_backward(loss);
      update(detail::UpdateGradients::local);
    });
  } else {
    step();
  }
  zero_grad();
}

void DistributedOptimizer::step() {
  detail::as_operation("DistributedOptimizer", [&] {
    model_->check_unchanged();
    model_->reducer().average_local_gradients();
    update(detail::UpdateGradients::averaged);
  });
}

at::Tensor DistributedOptimizer::step(const std::function<at::Tensor()>& closure) {
  return detail::as_operation("DistributedOptimizer", [&] {
    const bool shares = model_->options().share_memory;
    if (replicas_may_differ() || shares) {
      throw InvalidArgument(detail::concat(
          "DistributedOptimizer: step(closure): got ",
          shares ? "share_memory" : "a strategy that does not average every gradient",
          ", expected gradients that are averaged in every backward, because the optimizer's "
          "decisions must be the same on every rank: use another strategy, such as fp32, without "
          "share_memory"));
    }
    model_->check_unchanged();
    auto& reducer = model_->reducer();
    auto loss = update_->step([&] {
      const auto own_loss = closure();
      reducer.average_local_gradients();
      return reducer.mean_of_losses(own_loss);
    });
    reducer.exchange_parameters();
    return loss;
  });
}

void DistributedOptimizer::average_gradients() {
  detail::as_operation("DistributedOptimizer", [&] {
    model_->check_unchanged();
    model_->reducer().average_local_gradients();
  });
}

void DistributedOptimizer::update(detail::UpdateGradients gradients) {
  update_->step(gradients);
  model_->reducer().exchange_parameters();
}

NoSync DistributedOptimizer::no_sync() const { return model_->no_sync(); }

void DistributedOptimizer::zero_grad(bool set_to_none) {
  optimizer_.zero_grad(set_to_none);
  if (const auto* const sharded = detail::ShardedParameters::of(optimizer_))
    sharded->discard_gradients();
}

void DistributedOptimizer::synchronize() { model_->reducer().average_parameters(); }

bool DistributedOptimizer::replicas_may_differ() const {
  return model_->reducer().parameters_may_differ();
}

void DistributedOptimizer::weight(double samples) {
  if (replicas_may_differ()) {
    throw InvalidArgument(
        detail::concat("DistributedOptimizer: got a weight of ", samples,
                       " with a strategy that does not average every gradient, expected none: "
                       "parameters are averaged without weights"),
        {.operation = "weight"});
  }
  model_->set_weight(samples);
}

State DistributedOptimizer::state() const { return model_->state(); }

void DistributedOptimizer::load_state(const State& state) {
  detail::as_operation("load_state", [&] { model_->load_state(state); });
}

namespace {

/// The norm of several vectors as one, from their norms. It accumulates powers in Double, in the
/// order of the calls.
class TotalNorm {
 public:
  explicit TotalNorm(double type) : type_(type) {}

  void add(const at::Tensor& values) {
    if (values.numel() == 0) return;
    const double norm =
        at::linalg_vector_norm(values, type_, {}, false, at::kDouble).item<double>();
    add(std::isinf(type_) ? norm : std::pow(norm, type_));
  }
  /// Adds the sum() of another rank.
  void add(double sum) {
    if (!std::isinf(type_)) {
      sum_ += sum;
    } else if (std::isnan(sum) || sum > sum_) {  // std::max could drop NaN
      sum_ = sum;
    }
  }
  /// The sum of powers, or the largest magnitude.
  double sum() const { return sum_; }
  double value() const { return std::isinf(type_) ? sum_ : std::pow(sum_, 1 / type_); }

 private:
  double type_;
  double sum_ = 0;
};

/// Clips gradients of which this rank has parts, and gradients that every rank has.
double clip(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& whole,
            const Group& group, double max_norm, double norm_type) {
  TotalNorm own(norm_type);
  for (const auto& part : parts) own.add(part);
  if (group.rank() == 0) {
    for (const auto& gradient : whole) own.add(gradient);
  }
  const auto sum = at::empty({1}, at::kDouble).fill_(own.sum());
  const auto sums = at::empty({group.size()}, at::kDouble);
  group.all_gather(sums, sum).wait();
  TotalNorm total(norm_type);
  for (int rank = 0; rank < group.size(); ++rank) total.add(sums[rank].item<double>());
  const double factor = max_norm / (total.value() + 1e-6);
  if (!(factor >= 1)) {  // also for NaN
    for (const auto* gradients : {&parts, &whole}) {
      for (const auto& gradient : *gradients) gradient.mul_(factor);
    }
  }
  return total.value();
}

}  // namespace

double clip_grad_norm(DistributedOptimizer& optimizer, double max_norm, double norm_type) {
  constexpr const char* operation = "clip_grad_norm";
  return detail::as_operation(operation, [&] {
    if (!(max_norm >= 0)) {
      detail::throw_invalid(operation, "got max_norm = ", max_norm, ", expected 0 or more");
    }
    if (!(norm_type >= 1)) {
      detail::throw_invalid(operation, "got norm_type = ", norm_type,
                            ", expected 1 or more, such as 2 or infinity");
    }
    if (optimizer.replicas_may_differ()) {
      detail::throw_invalid(
          operation,
          "got a strategy that does not average every gradient, so that the ranks "
          "have different gradients, expected one that does, such as fp32");
    }
    optimizer.average_gradients();
    const auto parameters = detail::all_parameters(optimizer.optimizer());
    const auto* const sharded = detail::ShardedParameters::of(optimizer.optimizer());
    if (sharded == nullptr || !sharded->divides_gradients())
      return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> whole;
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined()) whole.push_back(parameter.grad());
    }
    return clip(sharded->gradients(), whole, sharded->group(), max_norm, norm_type);
  });
}

}  // namespace lockstep
