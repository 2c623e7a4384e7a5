#include <algorithm>
#include <numeric>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/samplers.h"

namespace lockstep {

EvaluationSampler::EvaluationSampler(std::size_t size, Replica replica)
    : replica_(replica), size_(size) {
  if (replica.ranks < 1 || replica.rank < 0 || replica.rank >= replica.ranks)
    throw InvalidArgument(detail::concat("EvaluationSampler: got rank ", replica.rank, " of ",
                                         replica.ranks, ", expected 0 <= rank < ranks"));
  reset();
}

EvaluationSampler::EvaluationSampler(std::size_t size, const Group& group)
    : EvaluationSampler(size, Replica{.rank = group.rank(), .ranks = group.size()}) {}

void EvaluationSampler::reset(std::optional<std::size_t> new_size) {
  size_ = new_size.value_or(size_);
  const auto rank = static_cast<std::size_t>(replica_.rank);
  const auto ranks = static_cast<std::size_t>(replica_.ranks);
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
