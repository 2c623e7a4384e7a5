#include "backend/strategy_hook.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <stdexcept>

#include "backend/errors.h"
#include "comm/communicator.h"
#include "lockstep/exchange_task.h"

// Note [A backward with a strategy]
// DDP calls the hook for its buckets in the order of their indices, on the thread of the backward.
// All ranks issue collectives in one order, but a collective is complete at different times on
// different ranks. So an exchange does not issue its second collective as soon as the first is
// complete: the hook issues it in a slot (lockstep/exchange_task.h), and the progress thread only
// advances what has been issued. The last bucket's call completes all exchanges.
// DDP does not call the hook for buckets that it skips (skip_all_reduce_unused_params), so the last
// call may be missing. A callback at the end of the backward completes the exchanges then. A nested
// backward has an end of its own; completing the exchanges that have begun is right there, too.

namespace lockstep_torch {

using lockstep::SyncTarget;

namespace {

lockstep::Strategy parsed(const std::string& text) {
  return with_python_errors([&] {
    auto strategy = lockstep::parse_strategy(text);
    if (strategy.exchanges_parameters()) {
      const bool has_gradients = text.find("partial_update") != std::string::npos ||
                                 text.find("partialUpdate") != std::string::npos ||
                                 text.find("adasum") != std::string::npos;
      refuse(StrategyHook::operation,
             c10::str("got \"", text, "\", which exchanges parameters, expected a strategy that ",
                      "exchanges gradients, which are all that DDP gives to a hook; ",
                      has_gradients
                          ? "add the option of=gradients"
                          : "use torch.distributed.optim.PostLocalSGDOptimizer, or Lockstep's "
                            "DistributedOptimizer in C++"));
    }
    return strategy;
  });
}

/// The exception that the autograd engine translates to the same one of Python as other calls do.
std::exception_ptr autograd_error(const std::exception_ptr& error) {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const std::invalid_argument& refused) {
      C10_THROW_ERROR(ValueError, refused.what());
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

StrategyHook::StrategyHook(const std::string& text, const Parameters& parameters)
    : strategy_(parsed(text)), model_is_known_(!parameters.empty()) {
  for (const auto& [name, tensor] : parameters) {
    parameters_.insert({tensor.unsafeGetTensorImpl(), {.name = name, .tensor = tensor}});
  }
}

std::int64_t StrategyHook::step() {
  const std::lock_guard lock(mutex_);
  // DDP may have skipped the last bucket.
  return in_backward_ ? step_ + 1 : step_;
}

c10::intrusive_ptr<c10::ivalue::Future> StrategyHook::exchange(
    const std::shared_ptr<Progress>& progress, const c10d::GradBucket& bucket) {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  auto future = c10::make_intrusive<Future>(c10::TensorType::get());
  try {
    if (unusable_) std::rethrow_exception(unusable_);
    join(progress);
    continue_backward(bucket);
    auto& entry = entry_for(bucket);
    entry.future = future;
    fill(entry, bucket.getBuffer());
    if (!backward_.empty()) run_slot(backward_.size() - 1);
    backward_.push_back(&entry);
    // partial_update needs the number of buckets, which the last one shows.
    if (strategy_.exchanges_every_gradient()) begin(entry);
    if (bucket.isLast()) {
      complete_exchanges();
      expect_complete_load();
      complete_futures();
      end_backward();
    }
  } catch (...) {
    // DDP raises the error when it waits for the future, and stays usable after a refusal.
    const auto error = std::current_exception();
    fail(error);
    if (!future->completed()) future->setError(autograd_error(error));
  }
  return future;
}

void StrategyHook::join(const std::shared_ptr<Progress>& progress) {
  if (progress_ == progress) return;
  if (progress_) {
    refuse(operation,
           "got another process group than in the backward before, expected one process group; "
           "make one Strategy for each");
  }
  progress->locked([&](const std::shared_ptr<lockstep::Communicator>& world) {
    group_.emplace(world);
    world->set_last_owner(static_cast<std::uint16_t>(world->last_owner() + 1));
    source_ = {.owner = lockstep::Source::Owner::distributed_data_parallel,
               .content = lockstep::Source::Content::gradients,
               .number = world->last_owner()};
  });
  progress_ = progress;
  progress->before_leaving([self = weak_from_this()] {
    if (const auto hook = self.lock()) hook->leave();
  });
  expect_same_strategy();
}

void StrategyHook::expect_same_strategy() {
  constexpr std::int64_t longest = 256;
  const auto own = at::zeros({longest}, at::kByte);
  const auto all = at::empty({group_->size(), longest}, at::kByte);
  strategy_.text().copy(static_cast<char*>(own.data_ptr()), longest - 1);
  const auto work = make_work();
  work->keep(own);
  work->keep(all);
  progress_->submit(work, {}, [&](Progress::Scope scope) {
    auto source = source_;
    source.content = lockstep::Source::Content::model;
    const lockstep::SourceScope of_hook(scope.world, source);
    scope.parts.operations.push_back(scope.world.all_gather(
        own.data_ptr(), all.data_ptr(), static_cast<std::size_t>(longest), lockstep::DType::u8));
  });
  work->wait({});
  const std::string first(static_cast<const char*>(all.data_ptr()));
  for (int rank = 1; rank < group_->size(); ++rank) {
    const std::string text(static_cast<const char*>(all[rank].data_ptr()));
    if (text == first) continue;
    unusable_ = std::make_exception_ptr(
        refusal(operation, c10::str("got \"", first, "\" on rank 0 and \"", text, "\" on rank ",
                                    rank, ", expected the same strategy on all ranks")));
    std::rethrow_exception(unusable_);
  }
}

/// Keeps the state and drops all references to the group, which is being destroyed.
void StrategyHook::leave() {
  const std::lock_guard lock(mutex_);
  if (is_running()) {
    unusable_ = std::make_exception_ptr(refusal(
        operation, "the process group was destroyed during a backward; make another Strategy"));
  }
  backward_.clear();
  in_backward_ = false;
  dissolve(0);
  for (auto& [name, values] : carried_) values = values.clone();
  group_.reset();
  progress_.reset();
}

bool StrategyHook::is_running() const {
  return std::ranges::any_of(backward_, [](const Entry* entry) {
    return !entry->future->completed() || (entry->work && !entry->work->done());
  });
}

std::size_t StrategyHook::position_of(const Entry& entry) const {
  return static_cast<std::size_t>(std::ranges::find(backward_, &entry) - backward_.begin());
}

void StrategyHook::expect_own_model(const c10d::GradBucket& bucket) const {
  if (!model_is_known_) return;
  for (const auto& parameter : bucket.getParameters()) {
    if (parameters_.contains(parameter.unsafeGetTensorImpl())) continue;
    refuse(
        operation,
        c10::str("got bucket ", bucket.getIndex(), " with a parameter of shape ", parameter.sizes(),
                 " of another model, expected the parameters of one DDP "
                 "model; make one Strategy for each model, and pass the model to it"));
  }
}

/// Begins another backward, or continues the current one.
void StrategyHook::continue_backward(const c10d::GradBucket& bucket) {
  const auto index = bucket.getIndex();
  if (in_backward_ && index <= last_index_) {
    if (is_running()) {
      unusable_ = std::make_exception_ptr(refusal(
          operation,
          c10::str("got bucket ", index, " before the backward with bucket ", last_index_,
                   " was complete, expected the buckets of one DDP model in order; make one "
                   "Strategy for each model, and after an exception in a backward another DDP "
                   "model and Strategy")));
      std::rethrow_exception(unusable_);
    }
    end_backward();  // DDP skipped the last bucket
  }
  expect_own_model(bucket);
  if (!in_backward_) {
    in_backward_ = true;
    callback_queued_ = false;
    backward_.clear();
    error_ = nullptr;
  }
  last_index_ = index;
  if (!callback_queued_ && torch::autograd::get_current_graph_task_id() >= 0) {
    callback_queued_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->complete_after_backward(); });
  }
}

void StrategyHook::end_backward() {
  in_backward_ = false;
  model_is_known_ = true;
  ++step_;
}

void StrategyHook::complete_after_backward() {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  callback_queued_ = false;
  try {
    complete_exchanges();
    complete_futures();
  } catch (...) {
    fail(std::current_exception());
  }
  // DDP has queued its own callback, which sets the gradients, by now.
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] {
    const std::lock_guard also_locked(self->mutex_);
    const c10::AutoGradMode also_no_grad(false);
    self->return_unused();
  });
}

void StrategyHook::begin(Entry& entry) {
  entry.begun = true;
  const auto target = strategy_.target(step_, position_of(entry), backward_.size());
  if (target != SyncTarget::gradients) return;
  entry.task = entry.exchange->exchange(step_, *entry.bucket, *group_);
  advance(entry);
}

WorkPointer StrategyHook::make_work() const {
  return c10::make_intrusive<BackendWork>(progress_, group_->rank(), c10d::OpType::UNKNOWN,
                                          "lockstep:strategy", std::vector<at::Tensor>(),
                                          TensorLists(), 0);
}

/// Issues the next collective of an exchange.
void StrategyHook::advance(Entry& entry) {
  auto source = source_;
  source.bucket = static_cast<std::int32_t>(position_of(entry));
  const auto work = make_work();
  try {
    progress_->submit(work, {}, [&](Progress::Scope scope) {
      const lockstep::SourceScope of_bucket(scope.world, source);
      auto collective = entry.task.advance();
      if (collective.pending()) scope.parts.operations.push_back(std::move(collective));
    });
    entry.work = work;
  } catch (const std::invalid_argument&) {
    // Every rank has this error here, so the other exchanges can be completed, and the group stays
    // usable.
    if (!error_) error_ = std::current_exception();
  }
}

void StrategyHook::wait(Entry& entry) {
  if (entry.work) entry.work->wait({});
}

void StrategyHook::run_slot(std::size_t slot) {
  for (std::size_t position = 0; position < slot; ++position) {
    auto& entry = *backward_[position];
    if (entry.task.finished() || !lockstep::detail::advances_in_slot(slot, position)) continue;
    wait(entry);
    advance(entry);
  }
}

/// Completes the exchanges of all buckets that the hook was called for.
void StrategyHook::complete_exchanges() {
  for (auto* entry : backward_) {
    if (!entry->begun) begin(*entry);
  }
  for (bool some = true; some;) {
    some = false;
    for (auto* entry : backward_) {
      wait(*entry);
      if (entry->task.finished()) continue;
      advance(*entry);
      some = true;
    }
  }
}

void StrategyHook::complete_futures() {
  for (auto* entry : backward_) {
    if (entry->future->completed()) continue;
    if (error_) {
      entry->future->setError(autograd_error(error_));
    } else {
      entry->future->markCompleted(entry->bucket->values());
    }
  }
}

void StrategyHook::fail(const std::exception_ptr& error) {
  if (!error_) error_ = error;
  for (auto* entry : backward_) {
    if (!entry->future->completed()) entry->future->setError(autograd_error(error));
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::invalid_argument&) {
    // All ranks have it, or the caller sends it.
  } catch (const std::exception& failure) {
    if (progress_) progress_->fail(failure.what());
  }
}

}  // namespace lockstep_torch
