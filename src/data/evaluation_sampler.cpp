#include <algorithm>
#include <numeric>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/samplers.h"

namespace lockstep::inline v0_2 {

EvaluationSampler::EvaluationSampler(std::size_t size, ShardSpec shard)
    : shard_(shard), size_(size) {
  if (shard.ranks < 1 || shard.rank < 0 || shard.rank >= shard.ranks)
    throw InvalidArgument(detail::concat("EvaluationSampler: got rank ", shard.rank, " of ",
                                         shard.ranks, ", expected 0 <= rank < ranks"));
  reset();
}

EvaluationSampler::EvaluationSampler(std::size_t size, const Group& group)
    : EvaluationSampler(size, ShardSpec{.rank = group.rank(), .ranks = group.size()}) {}

void EvaluationSampler::reset(std::optional<std::size_t> new_size) {
  size_ = new_size.value_or(size_);
  const auto rank = static_cast<std::size_t>(shard_.rank);
  const auto ranks = static_cast<std::size_t>(shard_.ranks);
  next_ = size_ * rank / ranks;
  end_ = size_ * (rank + 1) / ranks;
}

std::optional<std::vector<std::size_t>> EvaluationSampler::next(std::size_t batch_size) {
  const std::size_t count = std::min(batch_size, end_ - next_);
  if (count == 0) return std::nullopt;
  std::vector<std::size_t> indices(count);
  std::iota(indices.begin(), indices.end(), next_);
  next_ += count;
  return indices;
}

}  // namespace lockstep
