#include "parallel/buffer_sync.h"

#include <map>
#include <utility>

namespace lockstep::inline v0_2::detail {

BufferSync::BufferSync(const std::vector<NamedTensor>& buffers, BufferPolicy policy,
                       const Group& group) {
  if (policy == BufferPolicy::none) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> fractions;
  std::vector<at::Tensor> others;
  for (const auto& [name, tensor] : buffers) {
    const bool average = policy == BufferPolicy::average && tensor.is_floating_point();
    (average ? fractions[tensor.scalar_type()] : others).push_back(tensor);
  }
  for (auto& [dtype, tensors] : fractions) averaged_.emplace_back(std::move(tensors), group);
  if (!others.empty()) from_rank0_.emplace_back(std::move(others), group);
}

void BufferSync::begin() {
  for (auto& bundle : averaged_) bundle.begin_average();
  for (auto& bundle : from_rank0_) bundle.begin_broadcast(0);
}

void BufferSync::end() {
  for (auto& bundle : averaged_) bundle.end();
  for (auto& bundle : from_rank0_) bundle.end();
}

}  // namespace lockstep::detail
