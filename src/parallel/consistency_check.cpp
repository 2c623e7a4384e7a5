#include "parallel/consistency_check.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/tensor_checksum.h"

namespace lockstep::inline v0_2::detail {
namespace {

std::uint64_t checksum_of(const Bucket& bucket) {
  std::vector<std::uint64_t> checksums;
  for (const auto& slice : bucket.slices()) checksums.push_back(checksum(slice.parameter));
  return digest(std::as_bytes(std::span(checksums)));
}

}  // namespace

void ConsistencyCheck::write(std::int64_t step, const BucketReducers& reducers,
                             std::span<std::uint8_t, bytes> own) {
  bucket_ = nullptr;
  if (every_ == 0 || step % every_ != 0) {
    std::ranges::fill(own, std::uint8_t{0});
    return;
  }
  bucket_ = &reducers.all()[static_cast<std::size_t>(step / every_) % reducers.size()].bucket;
  const auto sum = checksum_of(*bucket_);
  const auto complement = ~sum;
  std::memcpy(own.data(), &sum, sizeof sum);
  std::memcpy(own.data() + sizeof sum, &complement, sizeof complement);
}

void ConsistencyCheck::check(std::int64_t step,
                             std::span<const std::uint8_t, bytes> largest) const {
  if (bucket_ == nullptr) return;
  constexpr std::size_t half = bytes / 2;
  bool equal = true;
  for (std::size_t i = 0; i < half; ++i) {
    equal = equal && static_cast<std::uint8_t>(~largest[half + i]) == largest[i];
  }
  if (equal) return;
  std::vector<std::string> lines;
  for (const auto& slice : bucket_->slices()) {
    lines.push_back(
        concat("parameter ", slice.name, " of checksum ", std::hex, checksum(slice.parameter)));
  }
  const auto found = difference(group_, lines);
  throw ReplicaError(
      concat("consistency check rank ", group_.rank(), " of ", group_.size(),
             ": parameters differ between ranks at step ", step, ", in bucket ", bucket_->index(),
             ": ", found ? found->text : "no single parameter differs",
             ". Likely causes: a step with gradients that were not averaged (the model was called "
             "without its wrapper after torch::load() or to(), or gradients were changed on one "
             "rank), wrappers used in another order, parameters that a rank changes by itself "
             "(Embedding with max_norm, sharpness-aware minimisation), a line search over a loss "
             "that is not averaged. Make the change on every rank, average what it depends on, or "
             "call broadcast_parameters() after it"),
      {.rank = found && found->rank >= 0 ? group_.communicator().world_rank(found->rank) : -1,
       .operation = "consistency check"});
}

}  // namespace lockstep::detail
