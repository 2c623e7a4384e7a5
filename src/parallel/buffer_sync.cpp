#include "parallel/buffer_sync.h"

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <utility>

namespace lockstep::inline v0_2 {
namespace {

/// A cache line, which is a multiple of every dtype's alignment.
constexpr std::int64_t alignment = 64;

std::int64_t padded_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
  return (bytes + alignment - 1) / alignment * alignment;
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
    const auto bytes = static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
    packed_.push_back(
        buffer_.narrow(0, begin, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
    begin += padded_bytes(tensor);
  }
}

void CoalescedTensors::pack() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) packed_[i].copy_(tensors_[i]);
}

void CoalescedTensors::begin_broadcast(int root) {
  is_written_ = group_.rank() != root;
  if (!is_written_) pack();
  work_ = group_.broadcast(buffer_, root);
}

void CoalescedTensors::begin_average() {
  is_written_ = true;
  pack();
  work_ = group_.all_reduce(buffer_.view(tensors_.front().scalar_type()), ReduceOp::avg);
}

void CoalescedTensors::end() {
  work_.wait();
  if (!is_written_) return;
  const at::NoGradGuard no_grad;
  // A graph may have saved one of the tensors and check its version. variable_data() has a version
  // counter of its own.
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].variable_data().copy_(packed_[i]);
}

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

BufferSync::BufferSync(const std::vector<NamedTensor>& buffers, BufferPolicy policy,
                       const Group& group) {
  if (policy == BufferPolicy::none) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> averaged;
  std::vector<at::Tensor> others;
  for (const auto& [name, tensor] : buffers) {
    const bool average = policy == BufferPolicy::average && tensor.is_floating_point();
    (average ? averaged[tensor.scalar_type()] : others).push_back(tensor);
  }
  for (auto& [dtype, tensors] : averaged) averaged_.emplace_back(std::move(tensors), group);
  if (!others.empty()) from_rank0_.emplace_back(std::move(others), group);
}

void BufferSync::begin() {
  for (auto& tensors : averaged_) tensors.begin_average();
  for (auto& tensors : from_rank0_) tensors.begin_broadcast(0);
}

void BufferSync::end() {
  for (auto& tensors : averaged_) tensors.end();
  for (auto& tensors : from_rank0_) tensors.end();
}

}  // namespace lockstep::detail
