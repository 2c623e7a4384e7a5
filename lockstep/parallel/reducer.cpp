#include "lockstep/parallel/reducer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "lockstep/comm/trace.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/parallel/gradient.h"
#include "lockstep/parallel/without_graph.h"

namespace lockstep::detail {
namespace {

using torch::autograd::variable_list;

/// Where a state keeps the count of exchanges, among what is under parameter names.
constexpr const char* step_name = "lockstep/step";

bool is_reducible(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

/// Whether values can be copied into the tensor.
void check_copyable(std::string_view kind, const std::string& name, const at::Tensor& tensor,
                    const Group& group) {
  const auto fail = [&](const auto&... what) {
    throw InvalidArgument(concat(kind, ' ', name, ": ", what...));
  };
  if (tensor.layout() != at::kStrided || tensor.device() != group.device()) {
    fail("got layout ", tensor.layout(), " on ", tensor.device(), ", expected a dense tensor on ",
         group.device(), ": convert it before you wrap the model");
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    fail("got an expanded tensor, whose elements share memory (sizes ", tensor.sizes(),
         ", strides ", tensor.strides(),
         "), expected memory of its own for every element: register "
         "its contiguous() copy");
  }
}

std::vector<NamedTensor> trainable(const ModelState& model) {
  std::vector<NamedTensor> parameters;
  for (const auto& named : model.parameters) {
    if (named.tensor.requires_grad()) parameters.push_back(named);
  }
  return parameters;
}

}  // namespace

/// It may outlive the reducer: an accumulator that LibTorch has replaced lives on in its graphs.
class Reducer::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<Reducer> reducer, std::size_t member)
      : reducer_(std::move(reducer)), member_(member) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (const auto reducer = reducer_.lock()) reducer->on_gradient(member_, inputs.at(0));
    return outputs;
  }

 private:
  std::weak_ptr<Reducer> reducer_;
  std::size_t member_;
};

/// One run of autograd's engine. The engine owns it, through the callback, and drops it at the end,
/// whether or not the callback ran.
class Reducer::Backward {
 public:
  Backward(Group group, std::shared_ptr<GroupWrappers> wrappers, int id)
      : task(id), group_(std::move(group)), wrappers_(std::move(wrappers)) {
    begins_at_once = wrappers_->begin(this);
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  ~Backward() {
    wrappers_->end(this);
    if (finished || sent == 0) return;
    group_.communicator().fail(concat("a backward ended by an exception after ", sent,
                                      " of its gradient buckets were sent"));
  }

  int task;                    ///< autograd's id of this run
  double factor = 1;           ///< what this rank's gradients are multiplied by
  bool begins_at_once = true;  ///< buckets may leave as they become ready
  bool announced = false;      ///< the ranks have agreed on this exchange, or begun to
  bool nested = false;         ///< another backward ran within: hooks may yet run again
  bool finished = false;
  std::vector<std::size_t> missing;  ///< of each lane, members whose hook has not run
  std::vector<std::size_t> ready;    ///< lanes, as their last hook ran
  std::vector<Work> works;           ///< by position, of each lane that was passed
  int sent = 0;                      ///< how many of them are under way
  TraceBackward span = {};

 private:
  Group group_;
  std::shared_ptr<GroupWrappers> wrappers_;
};

std::shared_ptr<Reducer> Reducer::create(const ModelState& model, const Group& group,
                                         const DataParallelOptions& options, const Source& owner) {
  check(model, group);
  std::shared_ptr<Reducer> reducer(new Reducer(model, group, options, owner));
  for (std::size_t i = 0; i < reducer->members_.size(); ++i) reducer->add_hook(i);
  return reducer;
}

void Reducer::check(const ModelState& model, const Group& group) {
  const auto parameters = trainable(model);
  if (parameters.empty()) {
    throw InvalidArgument("the model has no parameter that requires a gradient");
  }
  // Frozen parameters and buffers are copied from rank to rank, too.
  for (const auto& [name, tensor] : model.parameters)
    check_copyable("parameter", name, tensor, group);
  for (const auto& [name, tensor] : model.buffers) check_copyable("buffer", name, tensor, group);
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.is_leaf()) refuse(name, "got the result of a computation, expected a leaf");
    if (!is_reducible(tensor.scalar_type())) {
      refuse(name, concat("got ", toString(tensor.scalar_type()),
                          ", expected Float, Double, Half or BFloat16"));
    }
    check_has_no_hook(name, tensor);
  }
}

void Reducer::check_has_no_hook(const std::string& name, const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  for (const auto& hook : std::as_const(*accumulator).post_hooks()) {
    if (dynamic_cast<const Hook*>(hook.get()) == nullptr) continue;
    refuse(name,
           "is synchronised by another wrapper already, and would be averaged twice: wrap a "
           "model once, or destroy the first wrapper before");
  }
}

Reducer::Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options,
                 const Source& owner)
    : group_(group),
      owner_(owner),
      wrappers_(GroupWrappers::of(group)),
      lanes_(trainable(model), group, options.buckets, options.strategy, owner),
      agreement_(group),
      weights_(group),
      proof_(group, options.verify_every),
      buffers_(model.buffers, options.buffer_policy, group),
      parameters_may_differ_(!options.strategy.exchanges_every_gradient()) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    first_members_.push_back(members_.size());
    for (const auto& slice : lanes_[lane].bucket.slices()) {
      members_.push_back({.lane = lane, .slice = &slice});
    }
  }
  first_members_.push_back(members_.size());
  verdict_ = group_.empty({static_cast<std::int64_t>(members_.size() + Proof::bytes)}, at::kByte);
  flags_ = verdict_.data_ptr<std::uint8_t>();
}

void Reducer::add_hook(std::size_t index) {
  auto& member = members_[index];
  // The parameter holds it weakly, and the hook with it.
  member.accumulator = torch::autograd::impl::grad_accumulator(member.slice->parameter);
  member.hook = member.accumulator->add_post_hook(std::make_unique<Hook>(weak_from_this(), index));
}

void Reducer::follow_accumulators() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    const auto& [name, parameter, offset, values] = *member.slice;
    if (torch::autograd::impl::try_get_grad_accumulator(parameter) == member.accumulator) continue;
    if (!parameter.requires_grad()) continue;
    check_has_no_hook(name, parameter);
    add_hook(i);
    // No hook has said so.
    const auto state = member.record.state(parameter.grad(), values);
    if (state == GradientState::edited) member.record.set_changed();
  }
}

void Reducer::let_accumulate(const std::function<bool(const at::Tensor&)>& is_stepped) {
  for (auto& member : members_) member.may_accumulate = !is_stepped(member.slice->parameter);
}

void Reducer::weigh(double samples) {
  const SourceScope scope(group_.communicator(), source(Source::Content::weights));
  weights_.set(samples);
}

/// Whose collectives follow, for the ranks to compare.
Source Reducer::source(Source::Content content) const {
  auto source = owner_;
  source.content = content;
  return source;
}

Reducer::~Reducer() {
  for (auto& member : members_) {
    if (member.accumulator) member.accumulator->del_post_hook(member.hook);
    auto& gradient = member.slice->parameter.mutable_grad();
    if (!lies_in(gradient, member.slice->values)) continue;
    try {
      gradient = gradient.clone();
    } catch (const std::exception&) {
      // Short of memory: the gradient stays in the bucket, which it keeps alive.
    }
  }
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  // A view that is changed in place leaves its node, and the hook on it, behind; its base does not.
  const bool has_base = output.is_view() && output._base().requires_grad();
  const at::Tensor watched = has_base ? at::Tensor(output._base()) : output;
  if (watched.is_leaf() && !is_new_leaf(watched)) return;
  watched.register_hook([reducer = weak_from_this()](const at::Tensor&) {
    const auto self = reducer.lock();
    if (self && self->paused_ == 0 && self->accumulates_here()) self->join_backward();
  });
}

/// Whether this leaf is watched for the first time: a leaf keeps its hooks from step to step.
bool Reducer::is_new_leaf(const at::Tensor& leaf) {
  std::erase_if(watched_leaves_, [](const auto& watched) { return watched.expired(); });
  const auto is_leaf = [&](const auto& watched) {
    return watched.lock().get() == leaf.unsafeGetTensorImpl();
  };
  if (std::ranges::any_of(watched_leaves_, is_leaf)) return false;
  watched_leaves_.emplace_back(leaf.getIntrusivePtr());
  return true;
}

/// False in autograd::grad() and the like, which leave .grad() alone.
bool Reducer::accumulates_here() const {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    const auto accumulator =
        torch::autograd::impl::try_get_grad_accumulator(member.slice->parameter);
    const auto found = nodes->find(accumulator.get());
    return found != nodes->end() && found->second.needed_;
  });
}

std::shared_ptr<Reducer::Backward> Reducer::new_backward(int task) {
  auto backward = std::make_shared<Backward>(group_, wrappers_, task);
  backward->factor = weights_.take_factor();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    backward->missing.push_back(first_members_[lane + 1] - first_members_[lane]);
  }
  for (auto& member : members_) {
    member.ready = false;
    member.kept.reset();
  }
  backward->works.reserve(lanes_.size());
  return backward;
}

/// The backward that runs now, or the outermost of those that run within one another.
std::shared_ptr<Reducer::Backward> Reducer::join_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (auto running = backward_.lock()) {
    if (running->task != task) running->nested = true;
    return running;
  }
  auto backward = new_backward(task);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [reducer = weak_from_this(), backward] {
        if (const auto self = reducer.lock()) self->finish(*backward);
      });
  backward_ = backward;
  return backward;
}

void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  auto& member = members_[index];
  // Autograd calls hooks with undefined gradients too.
  if (incoming.defined()) {
    refuse_added_to_mean(member, incoming);
    member.record.set_changed();
    member.in_graph = member.in_graph || incoming.requires_grad();
  }
  if (paused_ > 0) return;
  const auto backward = join_backward();
  if (lanes_.position(member.lane) < backward->works.size()) {
    refuse(member.slice->name,
           "its gradient changed after it was sent: a backward ran within a backward and reached "
           "it again");
  }
  if (incoming.defined()) move_into_bucket(member);
  if (member.ready) return;
  member.ready = true;
  if (--backward->missing[member.lane] == 0) backward->ready.push_back(trace_ready(member.lane));
  if (backward->nested || !backward->begins_at_once) return;
  while (backward->works.size() < lanes_.size() &&
         backward->missing[lanes_.at(backward->works.size())] == 0) {
    begin_next(*backward);
  }
}

/// A mean that was sent with error feedback is not the gradients' mean: sent once more as a part of
/// a sum, what it lacks or has too much of would count twice.
void Reducer::refuse_added_to_mean(Member& member, const at::Tensor& incoming) {
  const auto& [name, parameter, offset, values] = *member.slice;
  if (!member.may_accumulate && member.mean.was_added_to(values, parameter.grad(), incoming)) {
    refuse(name,
           "a second backward adds to a mean that was exchanged with error feedback: call "
           "zero_grad() between the two, or put all but the last under no_sync()");
  }
  member.mean.reset();
}

void Reducer::move_into_bucket(Member& member) {
  const auto& [name, parameter, offset, values] = *member.slice;
  auto& gradient = parameter.mutable_grad();
  if (gradient.is_same(values)) return;
  if (!gradient.defined()) {
    refuse(name,
           "got no gradient from a backward that reached it: freeze parameters before the "
           "forward, not between it and the backward");
  }
  expect_like(gradient, *member.slice);
  if (!lies_in(gradient, values)) {
    const at::NoGradGuard no_grad;
    if (values.numel() > 0 && gradient.strides() == values.strides()) {
      std::memcpy(values.data_ptr(), gradient.data_ptr(), values.nbytes());
    } else {
      values.copy_(gradient);
    }
  }
  gradient = values;
}

/// Puts this rank's contribution into the bucket.
void Reducer::prepare(std::size_t index) {
  auto& member = members_[index];
  const auto& values = member.slice->values;
  const auto& gradient = member.slice->parameter.grad();
  const bool changed = member.record.changed() && gradient.defined();
  flags_[index] = changed ? 1 : 0;
  // These writes must not count as changes of a gradient.
  const at::AutoDispatchBelowADInplaceOrView no_versions;
  if (changed) return move_into_bucket(member);
  if (lies_in(gradient, values)) {
    member.kept = gradient.clone();  // a mean of equal values may differ in the last bit
  }
  // With a residual, what was sent before is not sent again: only what was not sent yet may go.
  if (!gradient.defined() || lanes_[member.lane].has_residual()) {
    values.zero_();
  } else if (!member.kept.defined()) {
    values.copy_(gradient);
  }
}

void Reducer::begin_next(Backward& backward) {
  const at::NoGradGuard no_grad;
  const auto lane = lanes_.at(backward.works.size());
  backward.works.emplace_back();
  if (lanes_.content(lane, step_) != Content::gradients) return;
  if (!backward.announced) announce(backward);
  for (auto i = first_members_[lane]; i < first_members_[lane + 1]; ++i) prepare(i);
  const auto& values = lanes_[lane].bucket.values();
  if (backward.factor == 0) {
    values.zero_();  // whatever this rank computed, were it NaN
  } else if (backward.factor != 1) {
    values.mul_(backward.factor);
  }
  backward.works.back() = lanes_.begin(lane, step_);
  ++backward.sent;
}

/// Begins the agreement with which an exchange of a DistributedOptimizer begins.
void Reducer::announce(Backward& backward) {
  backward.announced = true;
  if (!steps_by_optimizer()) return;
  const SourceScope scope(group_.communicator(), source(Source::Content::step_agreement));
  agreement_.begin({.in_backward = true, .step = static_cast<std::uint32_t>(step_)});
}

void Reducer::finish(Backward& backward) {
  const at::NoGradGuard no_grad;
  const bool exchanges = lanes_.exchanges(Content::gradients, step_);
  const auto refused = exchanges ? exchange(backward) : nullptr;
  for (auto& member : members_) {
    member.record.set_unchanged();
    member.in_graph = false;
  }
  const auto step = step_;
  if (!steps_by_optimizer()) ++step_;
  backward.finished = true;
  backward_.reset();
  if (refused) std::rethrow_exception(refused);
  if (exchanges) proof_.check(step, proof_bytes());
}

std::exception_ptr Reducer::exchange(Backward& backward) {
  while (backward.works.size() < lanes_.size()) begin_next(backward);
  if (steps_by_optimizer()) agreement_.end();
  // Averaging keeps only replicas in lockstep whose every gradient is averaged.
  if (!parameters_may_differ_) proof_.write(step_, lanes_, proof_bytes());
  auto verdict = begin_verdict();
  begin_buffers();
  auto refused = lanes_.complete(backward.works, step_);
  verdict.wait();
  buffers_.end();
  settle();
  const SourceScope scope(group_.communicator(), source(Source::Content::bucket_order));
  lanes_.learn_order(backward.ready);
  return refused;
}

Work Reducer::begin_verdict() {
  const SourceScope scope(group_.communicator(), source(Source::Content::participation));
  return group_.all_reduce(verdict_, ReduceOp::max);
}

void Reducer::begin_buffers() {
  const SourceScope scope(group_.communicator(), source(Source::Content::buffers));
  buffers_.begin();
}

/// Gives every parameter that some rank has changed its mean; leaves the others as they were.
void Reducer::settle() {
  const at::AutoDispatchBelowADInplaceOrView no_versions;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    if (lanes_.content(member.lane, step_) != Content::gradients) continue;
    const auto& values = member.slice->values;
    const auto& lane = lanes_[member.lane];
    if (flags_[i] != 0) {
      auto& gradient = member.slice->parameter.mutable_grad();
      if (!gradient.is_same(values)) gradient = values;
      if (member.in_graph) gradient = without_graph(values, member.slice->name);
      if (lane.has_residual()) member.mean.set(values);
      member.record.set_averaged(values);
    } else {
      // It would be lost: no optimizer looks at a gradient that nobody computed.
      if (lane.has_residual()) {
        const auto& residual = lane.residuals[i - first_members_[member.lane]];
        if (residual.defined()) residual.add_(values);
      }
      if (member.kept.defined()) values.copy_(member.kept);
    }
    member.kept.reset();
  }
}

std::span<std::uint8_t, Proof::bytes> Reducer::proof_bytes() {
  return std::span<std::uint8_t, Proof::bytes>(flags_ + members_.size(), Proof::bytes);
}

void Reducer::average_local_gradients() {
  const at::NoGradGuard no_grad;
  follow_accumulators();
  if (!lanes_.exchanges(Content::gradients, step_)) return;
  while (true) {
    const auto plan = agree();
    if (!plan.some_in_backward) {
      if (!plan.edited_alike) take_edited(plan);
      if (!plan.some_have_local && plan.edited_alike) return;
    }
    const auto backward = new_backward(-1);
    backward->announced = true;
    finish(*backward);
    if (!plan.some_in_backward) return;
  }
}

StepPlan Reducer::agree() {
  StepIntent own{.step = static_cast<std::uint32_t>(step_)};
  std::vector<std::uint64_t> edited;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& member = members_[i];
    if (lanes_.content(member.lane, step_) != Content::gradients) continue;
    const auto& [name, parameter, offset, values] = *member.slice;
    const auto state = member.record.state(parameter.grad(), values);
    own.has_local = own.has_local || state == GradientState::local;
    if (state != GradientState::edited) continue;
    expect_like(parameter.grad(), *member.slice);
    edited.push_back(i);
    edited.push_back(digest_of_edited(parameter.grad(), values));
    own.has_edited_mean = own.has_edited_mean || is_edited_mean(member);
  }
  if (!edited.empty()) own.edited = digest(std::as_bytes(std::span(edited)));
  const SourceScope scope(group_.communicator(), source(Source::Content::step_agreement));
  agreement_.begin(own);
  return agreement_.end();
}

/// Whether it is a mean that is not to be averaged again, and that was changed in place.
bool Reducer::is_edited_mean(const Member& member) const {
  const auto& [name, parameter, offset, values] = *member.slice;
  return lanes_.all()[member.lane].has_residual() && !member.may_accumulate &&
         lies_in(parameter.grad(), values);
}

/// The ranks have edited gradients in different ways: they are averaged like local ones.
void Reducer::take_edited(const StepPlan& plan) {
  std::string own_means;
  for (auto& member : members_) {
    const auto& [name, parameter, offset, values] = *member.slice;
    if (member.record.state(parameter.grad(), values) != GradientState::edited) continue;
    if (is_edited_mean(member)) own_means += concat(own_means.empty() ? "" : ", ", name);
    member.record.set_changed();
  }
  if (!plan.some_have_edited_mean) return;
  throw InvalidArgument(concat(
      "DistributedOptimizer rank ", group_.rank(), " of ", group_.size(),
      ": the averaged gradient of ", own_means.empty() ? "a parameter" : "parameter ", own_means,
      " was changed in place", own_means.empty() ? " on another rank" : "",
      ", to other values than on another rank, expected the same change on every rank: the "
      "strategy "
      "keeps what it has not sent and cannot average the mean again; call zero_grad() before you "
      "set gradients by hand, or use a strategy without error feedback"));
}

std::span<const std::uint8_t> Reducer::end_without_exchange() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    const auto state = member.record.state(member.slice->parameter.grad(), member.slice->values);
    flags_[i] = state == GradientState::local || state == GradientState::edited ? 1 : 0;
    member.in_graph = false;
  }
  auto verdict = begin_verdict();
  begin_buffers();
  verdict.wait();
  buffers_.end();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (flags_[i] != 0) members_[i].record.set_not_averaged();
  }
  return {flags_, members_.size()};
}

void Reducer::before_update() {
  if (parameters_may_differ_) lanes_.before_update(step_);
}

void Reducer::exchange_parameters() {
  const auto step = step_++;
  if (parameters_may_differ_) lanes_.count_left_out(step);
  if (!lanes_.exchanges(Content::parameters, step)) return;
  begin_buffers();
  lanes_.exchange_parameters(step);
  buffers_.end();
}

void Reducer::average_parameters() {
  if (!parameters_may_differ_) return;
  begin_buffers();
  lanes_.average_parameters();
  buffers_.end();
}

State Reducer::state() const {
  auto state = lanes_.state();
  state.emplace(step_name, at::scalar_tensor(step_, at::kLong));
  return state;
}

void Reducer::load(const State& state) {
  const auto step = state.find(step_name);
  if (step == state.end() || step->second.numel() != 1 || step->second.scalar_type() != at::kLong) {
    throw InvalidArgument(concat("strategy state: got none under \"", step_name,
                                 "\", expected the count of exchanges as one Long"));
  }
  lanes_.load(state);
  step_ = step->second.item<std::int64_t>();
}

}  // namespace lockstep::detail
