#include "parallel/reducer/buffer_sync.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/operation_error.h"
#include "group/instances.h"
#include "parallel/buckets/bucket_plan.h"
#include "parallel/reducer/model_state.h"

namespace lockstep::inline v0_2 {
namespace {

/// slice_alignment is a multiple of every dtype's alignment.
std::int64_t padded_bytes(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(round_up(tensor.nbytes(), slice_alignment));
}

/// Whether a tensor has these values already. False where a comparison would take more than a copy.
bool has_bits_of(const at::Tensor& tensor, const at::Tensor& packed) {
  if (!tensor.is_cpu() || !tensor.is_contiguous()) return false;
  if (tensor.scalar_type() != packed.scalar_type() || tensor.nbytes() != packed.nbytes())
    return false;
  return packed.nbytes() == 0 ||
         std::memcmp(tensor.const_data_ptr(), packed.const_data_ptr(), packed.nbytes()) == 0;
}

}  // namespace

CoalescedTensors::CoalescedTensors(std::vector<at::Tensor> tensors, const Group& group)
    : tensors_(std::move(tensors)), group_(group) {
  std::int64_t total = 0;
  for (const auto& tensor : tensors_) total += padded_bytes(tensor);
  buffer_ = group.empty({total}, at::kByte);
  buffer_.zero_();
  std::int64_t begin = 0;
  for (const auto& tensor : tensors_) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    packed_.push_back(
        buffer_.narrow(0, begin, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
    begin += padded_bytes(tensor);
  }
}

/// Whether write() will write the tensor.
bool CoalescedTensors::waits(std::size_t index) const {
  if (!waits()) return false;
  const auto& [memory, version] = places_[index];
  const auto& tensor = tensors_[index];
  return fits(index) && memory.is_alias_of(tensor.storage()) && version == tensor._version();
}

bool CoalescedTensors::fits(std::size_t index) const {
  return tensors_[index].sizes() == packed_[index].sizes();
}

bool CoalescedTensors::replace(std::size_t index, const at::Tensor& tensor) {
  const auto& packed = packed_[index];
  if (tensor.sizes() != packed.sizes() || tensor.scalar_type() != packed.scalar_type())
    return false;
  if (!tensors_[index].is_same(tensor)) tensors_[index] = tensor;
  return true;
}

void CoalescedTensors::pack() {
  std::vector<at::Tensor> packed;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (waits(i) || !fits(i)) continue;
    packed.push_back(packed_[i]);
    tensors.push_back(tensors_[i]);
  }
  detail::copy_each(packed, tensors);
}

void CoalescedTensors::begin_broadcast(int root) {
  receives_ = group_.rank() != root;
  if (receives_) {
    discard();
  } else {
    pack();  // what waits to be written is sent, and still written
  }
  work_ = group_.broadcast(buffer_, root);
}

void CoalescedTensors::begin_average(const detail::CountedRanks& counted) {
  receives_ = true;
  pack();
  discard();
  const auto values = buffer_.view(tensors_.front().scalar_type());
  const bool all_count = counted.number == group_.size();
  if (!counted.has_own) {
    values.zero_();
  } else if (!all_count) {
    values.div_(counted.number);
  }
  work_ = group_.all_reduce(values, all_count ? ReduceOp::avg : ReduceOp::sum);
}

void CoalescedTensors::end() {
  work_.wait();
  if (!receives_) return;
  for (const auto& tensor : tensors_)
    places_.push_back({.memory = tensor.storage(), .version = tensor._version()});
}

void CoalescedTensors::write() {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> packed;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!waits(i) || has_bits_of(tensors_[i], packed_[i])) continue;
    tensors.push_back(tensors_[i]);
    packed.push_back(packed_[i]);
  }
  detail::copy_each(tensors, packed);
  // A graph that saved the tensor raises an error. The graphs that saved constants, such as masks,
  // must not.
  for (const auto& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
  discard();
}

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {
namespace {

/// In a backward, a forward recomputes an earlier one, with the buffers of that.
bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

std::string is_now(const std::string& name, const at::Tensor& buffer) {
  return concat("buffer ", name, " is now ", toString(buffer.scalar_type()), ' ', buffer.sizes(),
                ", expected the dtype and the sizes");
}

}  // namespace

ForwardGraph::ForwardGraph(const std::shared_ptr<BufferSync>& buffers) : buffers_(buffers) {
  ++buffers->graphs_;
}

ForwardGraph::~ForwardGraph() {
  end();
  const auto buffers = buffers_.lock();
  if (buffers && watched_ && !has_run_) buffers->has_unused_graph_ = true;
  if (!buffers || std::this_thread::get_id() != thread_ || is_in_backward()) return;
  try {
    buffers->write_unless_used();
  } catch (const std::exception&) {
    // Memory is short: the next forward writes them.
  }
}

void ForwardGraph::run() {
  has_run_ = true;
  if (!torch::autograd::get_current_graph_task_keep_graph()) end();
  const auto buffers = buffers_.lock();
  if (!buffers || !buffers->waits()) return;
  torch::autograd::Engine::get_default_engine().queue_callback([waiting = buffers_] {
    if (const auto self = waiting.lock()) self->write_unless_used();
  });
}

void ForwardGraph::end() {
  if (ended_.exchange(true)) return;
  if (const auto buffers = buffers_.lock()) --buffers->graphs_;
}

BufferSync::BufferSync(const ModelState& model, BufferPolicy policy, const Group& group,
                       bool sees_forwards)
    : model_(model.view), sees_forwards_(sees_forwards) {
  if (policy == BufferPolicy::none) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> averaged;
  std::vector<at::Tensor> others;
  for (const auto& [name, tensor] : model.buffers) {
    const bool average = policy == BufferPolicy::average && tensor.is_floating_point();
    (average ? averaged[tensor.scalar_type()] : others).push_back(tensor);
  }
  averaged_ = averaged.size();
  for (auto& [dtype, tensors] : averaged) all_.emplace_back(std::move(tensors), group);
  if (!others.empty()) all_.emplace_back(std::move(others), group);
  std::unordered_map<const void*, Place> places;
  for (std::size_t collective = 0; collective < all_.size(); ++collective) {
    const auto& tensors = all_[collective].tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      places[tensors[i].unsafeGetTensorImpl()] = {.collective = collective, .index = i};
  }
  model_.tensors().for_each_assigned_buffer([&](const at::Tensor& buffer) {
    auto& place = places.at(buffer.unsafeGetTensorImpl());
    places_.push_back(place);
    place.is_repeated = true;
  });
  Instances<BufferSync>::all().list.push_back(this);
}

BufferSync::~BufferSync() {
  std::erase(Instances<BufferSync>::all().list, this);
  try {
    write();
  } catch (const std::exception&) {
    // Memory is short: the buffers keep their earlier values.
  }
}

std::string BufferSync::take_tensors() {
  if (all_.empty()) return {};
  std::vector<at::Tensor> buffers;
  model_.tensors().for_each_assigned_buffer(
      [&](const at::Tensor& buffer) { buffers.push_back(buffer); });
  if (buffers.size() != places_.size())
    return concat("got ", buffers.size(), " buffers, expected ", places_.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto& [collective, place, is_repeated] = places_[i];
    auto& tensors = all_[collective];
    const auto name = [&] { return model_.tensors().buffers()[i].name; };
    if (is_repeated && !tensors.tensors()[place].is_same(buffers[i])) {
      return concat("buffer ", name(),
                    " is another tensor than under its first name, expected one tensor");
    }
    if (!tensors.replace(place, buffers[i])) return is_now(name(), buffers[i]);
  }
  return {};
}

/// Names a tensor whose sizes the program has changed in place. Another dtype is allowed: to()
/// converts integers, too, and does not convert them back.
std::string BufferSync::changed_in_place() const {
  for (const auto& coalesced : all_) {
    const auto& tensors = coalesced.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (coalesced.fits(i)) continue;
      const auto named = model_.tensors().buffers();
      const auto found = std::ranges::find_if(
          named, [&](const NamedTensor& buffer) { return buffer.tensor.is_same(tensors[i]); });
      return is_now(found != named.end() ? found->name : "", tensors[i]);
    }
  }
  return {};
}

void BufferSync::check_tensors() {
  auto wrong = take_tensors();
  // An evaluation may need other sizes.
  if (wrong.empty() && at::GradMode::is_enabled()) wrong = changed_in_place();
  if (!wrong.empty()) {
    throw_invalid(sees_forwards_ ? "DistributedDataParallel" : "DistributedOptimizer", wrong,
                  " as when the model was wrapped: wrap it again after changing it, or set "
                  "buffer_policy = BufferPolicy::none");
  }
}

void BufferSync::prepare_forward() {
  if (is_in_backward()) return;
  check_tensors();
  write();
}

std::shared_ptr<ForwardGraph> BufferSync::begin_graph() {
  prepare_forward();
  return std::make_shared<ForwardGraph>(shared_from_this());
}

bool BufferSync::take_unused_graph() {
  return has_unused_graph_ && !is_in_backward() && !std::exchange(has_told_, true);
}

void BufferSync::begin(const CountedRanks& counted) {
  take_tensors();  // the next check_tensors() refuses others than at the construction
  for (std::size_t i = 0; i < all_.size(); ++i) {
    // A forward may have changed the buffers since, without a change of their versions.
    if (!sees_forwards_) all_[i].discard();
    i < averaged_ ? all_[i].begin_average(counted) : all_[i].begin_broadcast(counted.first);
  }
}

void BufferSync::end() {
  for (auto& tensors : all_) tensors.end();
  write_unless_used();
}

void BufferSync::end_step() {
  if (!sees_forwards_) write();
}

void BufferSync::write() {
  for (auto& tensors : all_) tensors.write();
}

void BufferSync::write(const std::vector<NamedTensor>& buffers) {
  if (buffers.empty()) return;
  std::unordered_set<const void*> written;
  for (const auto& named : buffers) written.insert(named.tensor.unsafeGetTensorImpl());
  const auto is_written = [&](const at::Tensor& tensor) {
    return written.contains(tensor.unsafeGetTensorImpl());
  };
  const auto all = Instances<BufferSync>::all();
  for (auto* const sync : all.list) {
    const bool has_some = std::ranges::any_of(sync->all_, [&](const CoalescedTensors& tensors) {
      return std::ranges::any_of(tensors.tensors(), is_written);
    });
    if (has_some && sync->sees_forwards_) sync->write();
  }
}

bool BufferSync::waits() const {
  return std::ranges::any_of(all_, [](const auto& tensors) { return tensors.waits(); });
}

void BufferSync::write_unless_used() {
  if (sees_forwards_ && graphs_ == 0) write();
}

}  // namespace lockstep::detail
