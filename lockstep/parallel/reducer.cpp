#include "lockstep/parallel/reducer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep::detail {
namespace {

using torch::autograd::variable_list;

[[noreturn]] void refuse(const std::string& name, std::string_view why) {
  throw InvalidArgument(concat("parameter ", name, ": ", why));
}

bool is_reducible(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

/// Whether a gradient is the slice: Module::zero_grad(false) puts another tensor over its memory.
bool lies_in(const at::Tensor& gradient, const at::Tensor& values) {
  return gradient.is_same(values) ||
         (gradient.defined() && gradient.layout() == at::kStrided &&
          gradient.data_ptr() == values.data_ptr() && gradient.strides() == values.strides());
}

std::vector<NamedTensor> trainable(const ModelState& model) {
  std::vector<NamedTensor> parameters;
  for (const auto& named : model.parameters) {
    if (named.tensor.requires_grad()) parameters.push_back(named);
  }
  return parameters;
}

}  // namespace

class Reducer::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(Reducer& reducer, std::size_t member) : reducer_(reducer), member_(member) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    reducer_.on_gradient(member_, inputs.at(0));
    return outputs;
  }

 private:
  Reducer& reducer_;
  std::size_t member_;
};

/// One run of autograd's engine. The engine owns it, through the callback, and drops it at the end,
/// whether or not the callback ran.
class Reducer::Backward {
 public:
  Backward(Group group, int id) : task(id), group_(std::move(group)) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  ~Backward() {
    if (finished || works.empty()) return;
    group_.communicator().fail(concat("a backward ended by an exception after ", works.size(),
                                      " of its gradient buckets were sent"));
  }

  int task;             ///< autograd's id of this run
  bool nested = false;  ///< another backward ran within: hooks may yet run again
  bool finished = false;
  std::vector<Work> works;  ///< one for each bucket begun

 private:
  Group group_;
};

std::shared_ptr<Reducer> Reducer::create(const ModelState& model, const Group& group,
                                         const DataParallelOptions& options) {
  check(model, group);
  std::shared_ptr<Reducer> reducer(new Reducer(model, group, options));
  reducer->add_hooks();
  return reducer;
}

void Reducer::check(const ModelState& model, const Group& group) {
  const auto parameters = trainable(model);
  if (parameters.empty()) {
    throw InvalidArgument("the model has no parameter that requires a gradient");
  }
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.is_leaf()) refuse(name, "got the result of a computation, expected a leaf");
    if (tensor.layout() != at::kStrided || tensor.device() != group.device()) {
      refuse(name, concat("got layout ", tensor.layout(), " on ", tensor.device(),
                          ", expected a dense tensor on ", group.device()));
    }
    if (!is_reducible(tensor.scalar_type())) {
      refuse(name, concat("got ", toString(tensor.scalar_type()),
                          ", expected Float, Double, Half or BFloat16"));
    }
    const auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
    for (const auto& hook : std::as_const(*accumulator).post_hooks()) {
      if (dynamic_cast<const Hook*>(hook.get()) == nullptr) continue;
      refuse(name,
             "is synchronised by another wrapper already, and would be averaged twice: wrap a "
             "model once, or destroy the first wrapper before");
    }
  }
}

Reducer::Reducer(const ModelState& model, const Group& group, const DataParallelOptions& options)
    : group_(group) {
  const auto parameters = trainable(model);
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : parameters) {
    specs.push_back({.numel = static_cast<std::size_t>(tensor.numel()),
                     .dtype = tensor.scalar_type(),
                     .device = tensor.device()});
  }
  const auto plan = bucket_plan(specs, options.buckets);
  lanes_.reserve(plan.size());
  members_.reserve(parameters.size());
  for (const auto& planned : plan) {
    std::vector<Bucket::Slice> slices;
    for (const auto& [parameter, offset] : planned.places) {
      slices.push_back({.name = parameters[parameter].name,
                        .parameter = parameters[parameter].tensor,
                        .offset = offset});
    }
    Bucket bucket(lanes_.size(), planned.numel, planned.dtype, std::move(slices), group_);
    auto exchange = options.strategy.exchange(bucket);
    lanes_.push_back({.bucket = std::move(bucket),
                      .exchange = std::move(exchange),
                      .first_member = members_.size()});
    for (const auto& slice : lanes_.back().bucket.slices()) {
      members_.push_back({.lane = lanes_.size() - 1, .slice = &slice});
    }
  }
  changed_anywhere_ = group_.empty({static_cast<std::int64_t>(members_.size())}, at::kByte);
  flags_ = changed_anywhere_.data_ptr<std::uint8_t>();

  if (options.buffer_policy == BufferPolicy::from_rank0 && !model.buffers.empty()) {
    std::vector<at::Tensor> buffers;
    for (const auto& named : model.buffers) buffers.push_back(named.tensor);
    buffers_ = std::make_unique<Bundle>(std::move(buffers), group_);
  }
}

void Reducer::add_hooks() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    // The parameter holds it weakly, and the hook with it.
    member.accumulator = torch::autograd::impl::grad_accumulator(member.slice->parameter);
    member.hook = member.accumulator->add_post_hook(std::make_unique<Hook>(*this, i));
  }
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
  watched.register_hook([reducer = weak_from_this()](const at::Tensor&) {
    const auto self = reducer.lock();
    if (self && self->paused_ == 0 && self->accumulates_here()) self->join_backward();
  });
}

/// False in autograd::grad() and the like, which leave .grad() alone.
bool Reducer::accumulates_here() const {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    const auto found = nodes->find(&*member.accumulator);
    return found != nodes->end() && found->second.needed_;
  });
}

/// The backward that runs now, or the outermost of those that run within one another.
std::shared_ptr<Reducer::Backward> Reducer::join_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (auto running = backward_.lock()) {
    if (running->task != task) running->nested = true;
    return running;
  }
  auto backward = std::make_shared<Backward>(group_, task);
  for (auto& lane : lanes_) lane.missing = lane.bucket.slices().size();
  for (auto& member : members_) {
    member.ready = false;
    member.kept.reset();
  }
  backward->works.reserve(lanes_.size());
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
  if (incoming.defined()) member.changed = true;
  if (paused_ > 0) return;
  const auto backward = join_backward();
  if (member.lane < backward->works.size()) {
    refuse(member.slice->name,
           "its gradient changed after it was sent: a backward ran within a backward and reached "
           "it again");
  }
  if (incoming.defined()) move_into_bucket(member);
  if (member.ready) return;
  member.ready = true;
  --lanes_[member.lane].missing;
  if (backward->nested) return;
  while (backward->works.size() < lanes_.size() && lanes_[backward->works.size()].missing == 0) {
    begin_next(*backward);
  }
}

void Reducer::move_into_bucket(Member& member) {
  const auto& [name, parameter, offset, values] = *member.slice;
  auto& gradient = parameter.mutable_grad();
  if (gradient.is_same(values)) return;
  if (gradient.layout() != at::kStrided || gradient.scalar_type() != values.scalar_type() ||
      gradient.sizes() != values.sizes()) {
    refuse(name, concat("got a gradient of layout ", gradient.layout(), ", ",
                        toString(gradient.scalar_type()), ' ', gradient.sizes(),
                        ", expected a dense one of ", toString(values.scalar_type()), ' ',
                        values.sizes()));
  }
  if (!lies_in(gradient, values)) {
    const at::NoGradGuard no_grad;
    if (gradient.strides() == values.strides()) {
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
  const bool changed = member.changed && gradient.defined();
  flags_[index] = changed ? 1 : 0;
  if (changed) {
    move_into_bucket(member);
  } else if (!gradient.defined()) {
    values.zero_();
  } else if (lies_in(gradient, values)) {
    member.kept = gradient.clone();  // a mean of equal values may differ in the last bit
  } else {
    values.copy_(gradient);
  }
}

void Reducer::begin_next(Backward& backward) {
  const at::NoGradGuard no_grad;
  auto& lane = lanes_[backward.works.size()];
  for (std::size_t i = 0; i < lane.bucket.slices().size(); ++i) prepare(lane.first_member + i);
  backward.works.push_back(lane.exchange->advance({.step = step_}, lane.bucket, group_));
}

void Reducer::finish(Backward& backward) {
  const at::NoGradGuard no_grad;
  while (backward.works.size() < lanes_.size()) begin_next(backward);
  auto flags = group_.all_reduce(changed_anywhere_, ReduceOp::max);
  if (buffers_) buffers_->begin_broadcast(0);

  bool going = true;
  for (int stage = 1; going; ++stage) {
    going = false;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      auto& work = backward.works[i];
      if (!work.pending()) continue;
      work.wait();
      work = lanes_[i].exchange->advance({.step = step_, .stage = stage}, lanes_[i].bucket, group_);
      going = going || work.pending();
    }
  }
  flags.wait();
  if (buffers_) buffers_->end_broadcast();
  settle();
  ++step_;
  backward.finished = true;
  backward_.reset();
}

/// Gives every parameter that some rank has changed its mean; leaves the others as they were.
void Reducer::settle() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    const auto& values = member.slice->values;
    if (flags_[i] != 0) {
      auto& gradient = member.slice->parameter.mutable_grad();
      if (!gradient.is_same(values)) gradient = values;
    } else if (member.kept.defined()) {
      values.copy_(member.kept);
    }
    member.kept.reset();
    member.changed = false;
  }
}

}  // namespace lockstep::detail
