#include "parallel/reducer/reducer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "group/instances.h"
#include "lockstep/error.h"
#include "parallel/reducer/gradient.h"
#include "profile/trace.h"

// Note [The life of a gradient]
// From autograd until backward() returns, in this order:
//
// 1. Autograd adds to .grad() and calls the parameter's hook: on_gradient(). A GradientRecord
//    notes the change.
// 2. GradientSet::move_into_bucket() copies the gradient into its slice of a bucket, and .grad()
//    becomes the slice. On a device, step 4 copies all gradients of a bucket at once, by
//    move_all_into(). A bucket with TransientMemory has memory from step 4 on,
//    where move_in() moves the gradients into it.
// 3. A bucket is ready when the hooks of all its parameters have run. Ready buckets begin in an
//    order that is the same on every rank, so one may wait for another. In the first backward, in
//    one with nested ones, and beside other groups of a device, none begins before the end.
// 4. begin_next(): GradientSet::prepare() writes this rank's contribution and its participation
//    flag. A gradient that no backward of this rank has changed counts as its value, the last mean
//    or what the program has set; as zero if it is undefined, or with error feedback. Then the
//    weight factor multiplies it, and the strategy's exchange begins.
// 5. Each later hook advances exchanges that need not wait.
// 6. The engine's callback at the end of the backward calls finish(), which begins the other
//    buckets and then flags, buffers and sparse gradients, and waits for all.
// 7. GradientSet::finish_exchange() makes .grad() the mean where some rank has changed it, and what
//    it was elsewhere. If this rank has only a part of the mean, GradientShard has it, and .grad()
//    is undefined.
//
// Under no_sync() there is only step 1. A rank without gradients begins with step 6. If its loss
// reaches no parameter, the hook of watch() on the wrapper's output has queued the callback. If it
// has no loss, the step of its DistributedOptimizer calls average_local_gradients(). If it reached
// another wrapper only, GroupWrappers calls finish_backward().

namespace lockstep::inline v0_2::detail {

/// One run of autograd's engine. The engine's callback ends it when it is destroyed, so it ends
/// with the run even if the callback was not called.
class Reducer::Backward {
 public:
  Backward(Reducer& reducer, int id, bool is_first)
      : task(id),
        factor(reducer.weight_factor(is_first)),
        round(reducer.reducers_, SyncTarget::gradients, reducer.step_),
        ready(reducer.gradients_.size()),
        group_(reducer.group_),
        wrappers_(reducer.wrappers_) {
    wrappers_->begin(this);
    for (const auto& of_bucket : reducer.reducers_.all())
      missing.push_back(of_bucket.bucket.slices().size());
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  ~Backward() { end(); }

  bool ended() const { return ended_; }
  /// Ends the world if an exception has ended the backward after some buckets were sent. Later work
  /// of the current stream may use their memory. Any thread; no effect from the second call on.
  void end() noexcept {
    const std::lock_guard lock(mutex_);
    if (ended_.exchange(true)) return;
    wrappers_->end(this);
    if (finished || round.begun() == 0) return;
    group_.communicator().fail(concat("a backward ended by an exception after ", round.begun(),
                                      " of its gradient buckets were sent"));
    round.abandon();  // the progress thread puts no more copies on the stream
    if (const auto comm = comm_stream_of(group_)) comm->block_current();
  }

  int task;                      ///< autograd's id of this run
  double factor;                 ///< weight factor of this rank's gradients
  bool agreement_begun = false;  ///< the step agreement of this exchange has begun
  bool has_own_steps = false;    ///< of the wrapped optimizer, before it
  bool finished = false;
  ExchangeRound round;
  std::vector<char> ready;           ///< per parameter: its hook has run
  std::vector<std::size_t> missing;  ///< per bucket: parameters whose hook has not run
  std::vector<std::size_t> order;    ///< buckets in the order in which they became ready
  TraceBackward span = {};
  GradientStreams streams = {};  ///< of the gradients so far

 private:
  Group group_;
  std::shared_ptr<GroupWrappers> wrappers_;
  std::mutex mutex_;
  std::atomic<bool> ended_ = false;
};

Reducer::Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options,
                 const UpdateNeeds& needs, const Source& owner)
    : group_(group),
      host_(group.host()),
      owner_(owner),
      needs_optimizer_(needs.option),
      wrappers_(per_group<GroupWrappers>(group, group)),
      reducers_(trainable(model, GradientLayout::dense), group, options.buckets,
                ParameterStrategies(options), owner, needs.parts),
      sparse_(trainable(model, GradientLayout::sparse), group, owner, reducers_.size()),
      gradients_(reducers_, sparse_, group, options.check_finite),
      agreement_(group),
      weights_(group),
      check_(group, options.verify_every.value_or(group.device().is_cpu() ? 1 : 100)),
      positions_(group),
      own_steps_(group),
      buffers_(
          std::make_shared<BufferSync>(model, options.buffer_policy, group,
                                       owner.owner == Source::Owner::distributed_data_parallel)),
      hooks_(gradients_.parameters(),
             {.before = std::bind_front(&GradientSet::before_backward, &gradients_),
              .after = [this](std::size_t parameter, const at::Tensor& incoming) {
                as_operation("backward", [&] { on_gradient(parameter, incoming); });
              }}) {
  update_membership();
}

bool Reducer::in_backward() const { return backward_ && !backward_->ended(); }

Reducer::~Reducer() {
  // An exception has reached the program, and the device's thread of autograd has not ended yet.
  if (backward_) backward_->end();
  wrappers_->remove_member(*this);
}

/// The source of this wrapper's collectives.
Source Reducer::source(Source::Content content) const {
  auto source = owner_;
  source.content = content;
  return source;
}

void Reducer::set_weight(double samples) {
  const SourceScope scope(host_.communicator(), source(Source::Content::weights));
  weights_.set(samples);
}

void Reducer::hook_new_accumulators() {
  if (!ParameterHooks::is_in_node()) after_nested_ = false;
  for (const auto parameter : hooks_.hook_new_accumulators())
    gradients_.add_unreported_backwards(parameter);
}

void Reducer::watch(const at::Tensor& output, const std::shared_ptr<ForwardGraph>& graph) {
  if (!output.defined() || !output.requires_grad()) return;
  // An in-place change of a view replaces its autograd node, which has the hook. The base keeps its
  // hook.
  const bool has_base = output.is_view() && output._base().requires_grad();
  const at::Tensor watched = has_base ? at::Tensor(output._base()) : output;
  if (watched.is_leaf() && !hooks_.is_new_leaf(watched)) return;
  // The hooks of a leaf outlive the forward, whose graph has saved nothing for it.
  const auto owned = watched.is_leaf() ? nullptr : graph;
  if (owned) owned->set_watched();
  watched.register_hook([reducer = weak_from_this(), owned](const at::Tensor&) {
    if (owned) owned->run();
    const auto self = reducer.lock();
    if (self && !self->is_paused() && self->hooks_.accumulates_here()) self->current_backward();
  });
}

/// The weight factor of this rank's gradients in an exchange. After that of a nested backward,
/// which has taken the weights, those within the same backward and that one itself have the same.
double Reducer::weight_factor(bool is_first) {
  if (!after_nested_ || weights_.are_set()) last_factor_ = weights_.begin_exchange(is_first);
  return last_factor_;
}

std::shared_ptr<Reducer::Backward> Reducer::new_backward(int task, bool is_first) {
  check_optimizer();
  if (check_model_ && !has_optimizer_) check_model_();
  gradients_.begin_backward();
  return std::make_shared<Backward>(*this, task, is_first);
}

/// The current backward; of nested backwards, the outermost.
std::shared_ptr<Reducer::Backward> Reducer::current_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (in_backward()) {
    if (backward_->task != task) has_nested_ = true;
    return backward_;
  }
  auto backward = new_backward(task);
  backward->has_own_steps = own_steps_.find();
  const std::shared_ptr<Backward> run(backward.get(), [backward](Backward* self) { self->end(); });
  torch::autograd::Engine::get_default_engine().queue_callback(
      [reducer = weak_from_this(), backward = run] {
        const auto self = reducer.lock();
        if (self && !backward->finished) {
          as_operation("backward", [&] { self->wrappers_->finish(*self); });
        }
      });
  backward_ = backward;
  wrappers_->reach(*this, backward.get());
  return backward;
}

void Reducer::finish_backward() {
  const auto backward = in_backward() ? backward_ : new_backward(-1);
  finish(*backward);
}

void Reducer::on_gradient(std::size_t parameter, const at::Tensor& incoming) {
  // Autograd calls hooks with undefined gradients too.
  if (incoming.defined()) gradients_.add_backward(parameter, incoming);
  if (is_paused()) return;
  const auto backward = current_backward();
  if (gradients_.is_sparse(parameter)) return;  // exchanged at the end of the backward
  auto& round = backward->round;
  const auto bucket = gradients_.bucket_of(parameter);
  if (reducers_.position(bucket) < round.next()) {
    refuse(gradients_.name_of(parameter),
           "its gradient changed after it was sent: a nested backward reached the parameter again, "
           "and earlier backwards of the wrapper had none nested in them: wrap the model again "
           "before the first of them");
  }
  // A device copies the gradients of a bucket at once.
  if (incoming.defined() && !reducers_.comm_stream()) gradients_.move_into_bucket(parameter);
  if (const auto& comm = reducers_.comm_stream()) backward->streams.insert(comm->current());
  if (std::exchange(backward->ready[parameter], 1) != 0) return;
  if (--backward->missing[bucket] == 0) backward->order.push_back(trace_ready(bucket));
  if (!may_begin(*backward)) return;
  // Every hook also advances later stages of earlier buckets.
  while (round.may_begin() && round.next() < reducers_.size() &&
         backward->missing[reducers_.index_at(round.next())] == 0) {
    begin_next(*backward);
  }
}

/// Whether buckets may begin as they become ready, not at the end of the backward. Hooks may run a
/// second time if a backward has others nested in it. The first backward shows whether it has.
bool Reducer::may_begin(const Backward& backward) const {
  return has_exchanged_ && !has_nested_ && wrappers_->may_begin(&backward);
}

/// Begins the step agreement of this backward, once.
void Reducer::begin_agreement(Backward& backward) {
  if (!backward.agreement_begun && has_optimizer_) {
    const SourceScope scope(host_.communicator(), source(Source::Content::step_agreement));
    agreement_.begin({.step = Compared(static_cast<std::uint32_t>(step_)),
                      .in_backward = StepIntent::place_of(reducers_.product(), after_nested_),
                      .lost_mean = gradients_.lost_mean(),
                      .holds_mean = gradients_.has_parts(),
                      .has_own_steps = backward.has_own_steps});
  }
  backward.agreement_begun = true;
}

/// Begins the exchange of the next bucket of gradients.
void Reducer::begin_next(Backward& backward) {
  const at::NoGradGuard no_grad;
  const auto bucket = reducers_.index_at(backward.round.next());
  const bool exchanges = reducers_.target(bucket, step_) == SyncTarget::gradients;
  if (exchanges && reducers_.comm_stream()) {
    order(backward.streams, reducers_.comm_stream()->current());
    gradients_.move_all_into(bucket);
  }
  const CommStreamScope on_comm_stream(reducers_.comm_stream(), backward.streams);
  if (exchanges) {
    begin_agreement(backward);
    gradients_.prepare(bucket, backward.factor);
    weigh(reducers_[bucket].bucket.values(), backward.factor);
  } else if (gradients_.checks_finite()) {
    gradients_.set_flags(bucket, 1);
  }
  backward.round.begin_next();
}

void Reducer::finish(Backward& backward) {
  const at::NoGradGuard no_grad;
  const CommStreamScope on_comm_stream(reducers_.comm_stream(), backward.streams);
  try {
    finish_on_stream(backward);
  } catch (...) {
    on_comm_stream.block_caller();
    throw;
  }
  on_comm_stream.block_caller();
}

void Reducer::finish_on_stream(Backward& backward) {
  const bool exchanges = exchanges_gradients();
  // Not for gradients of other ranks' backwards. A nested backward has a part of the graph only.
  if (const auto* graph = torch::autograd::get_current_graph_task_nodes_in_graph();
      graph != nullptr && backward.task == torch::autograd::get_current_graph_task_id() &&
      !has_nested_) {
    find_replaced([&] { return *graph; });
  }
  const auto error = exchanges ? exchange(backward) : nullptr;
  gradients_.finish_exchange(step_, some_in_step_);
  const auto step = step_;
  if (!has_optimizer_) ++step_;
  has_exchanged_ = true;
  backward.finished = true;
  after_nested_ = ParameterHooks::is_in_node();
  backward_.reset();
  group_.communicator().count_step();
  if (error) std::rethrow_exception(error);
  if (backward.has_own_steps) throw own_steps_.error(true);
  if (exchanges) check_.check(step, gradients_.checks().parameters);
  // No flags have told the other ranks.
  if (const auto replaced = hooks_.take_replaced(); !replaced.empty())
    std::rethrow_exception(gradients_.replaced_error(replaced.front(), group_));
}

/// Completes the exchange of a step. Returns the error of a strategy, the same on every rank, or
/// null.
std::exception_ptr Reducer::exchange(Backward& backward) {
  auto& round = backward.round;
  while (round.next() < reducers_.size()) {
    round.wait_to_begin();
    begin_next(backward);
  }
  // All collectives before the flags are issued first, so that the flags have the same position in
  // the order of collectives on every rank.
  round.wait_to_begin();
  begin_agreement(backward);
  const auto all = has_optimizer_ ? end_agreement() : StepIntent{};
  some_in_step_ = all.in_backward != 0 && all.in_step != 0;
  // Parameters stay equal only under strategies that average every gradient.
  const auto check = parameters_may_differ() ? Compared<std::uint64_t>::none()
                                             : check_.begin(step_, reducers_, sparse_);
  gradients_.prepare_sparse(backward.factor);
  auto flags = begin_flags(check);
  begin_buffers();
  sparse_.begin();
  auto error = round.complete();
  if (!error && all.mixes_means()) error = std::make_exception_ptr(dropped_mean_error());
  if (!error && all.has_own_steps != 0)
    error = std::make_exception_ptr(own_steps_.error(backward.has_own_steps));
  flags.wait();
  buffers_->end();
  const auto sparse_error = sparse_.complete(gradients_.sparse_changed());
  const auto flag_error = end_flags();
  if (!error) error = flag_error ? flag_error : sparse_error;
  const SourceScope scope(host_.communicator(), source(Source::Content::bucket_order));
  reducers_.set_order_once(backward.order);
  return error;
}

Work Reducer::begin_flags(const Compared<std::uint64_t>& check) {
  for (const auto parameter : hooks_.take_replaced()) gradients_.flag_replaced(parameter);
  gradients_.complete_flags(last_factor_);
  gradients_.set_checks({.parameters = check, .positions = positions_.begin()});
  const SourceScope scope(host_.communicator(), source(Source::Content::participation));
  return host_.all_reduce(gradients_.flags(), ReduceOp::max);
}

/// Call after the all_reduce of the flags. Returns the error that they report, the same on every
/// rank, or null.
std::exception_ptr Reducer::end_flags() {
  const SourceScope scope(host_.communicator(), source(Source::Content::participation));
  gradients_.count_unchanged();
  gradients_.agree_on_part_factors(last_factor_, host_);
  positions_.check(gradients_.checks().positions);
  return gradients_.take_error(step_, group_);
}

void Reducer::begin_buffers() {
  const SourceScope scope(group_.communicator(), source(Source::Content::buffers));
  buffers_->begin(weights_.counted());
}

void Reducer::average_local_gradients(LossGraph loss) {
  const at::NoGradGuard no_grad;
  hook_new_accumulators();
  if (!exchanges_gradients()) return exchange_flags();
  weights_.check();  // before any collective, as in a backward
  bool has_followed = false;
  while (true) {
    const auto all = agree(has_followed, loss);
    const Request request(*this, all.product());
    if (all.in_backward == 0) {
      check_options(all.options.is_equal());
      some_in_step_ = false;
      const bool exchanges = prepare_step(all, has_followed);
      gradients_.forget_means_from_step();
      if (!exchanges) return;
    }
    after_nested_ = all.in_backward > StepIntent::keeps_weights;
    const auto backward = new_backward(-1, all.in_backward != 0);
    backward->agreement_begun = true;
    finish(*backward);
    if (all.in_backward == 0) return;
    has_followed = true;
  }
}

}  // namespace lockstep::detail
