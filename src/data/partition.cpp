#include "lockstep/partition.h"

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

IndexRange partition_contiguous(std::size_t size, ShardSpec shard) {
  if (shard.ranks < 1 || shard.rank < 0 || shard.rank >= shard.ranks)
    throw InvalidArgument(detail::concat("partition_contiguous: got rank ", shard.rank, " of ",
                                         shard.ranks, ", expected 0 <= rank < ranks"));
  const std::size_t each = size / static_cast<std::size_t>(shard.ranks);
  const std::size_t first = each * static_cast<std::size_t>(shard.rank);
  return {.first = first, .last = first + each};
}

IndexRange partition_contiguous(std::size_t size, const Group& group) {
  return partition_contiguous(size, ShardSpec{.rank = group.rank(), .ranks = group.size()});
}

namespace detail {

std::size_t size_to_partition(std::optional<std::size_t> size) {
  if (!size) throw InvalidArgument("partition_dataset: got a dataset that does not know its size");
  return *size;
}

std::vector<std::size_t> shift(c10::ArrayRef<std::size_t> indices, IndexRange range) {
  std::vector<std::size_t> shifted(indices.begin(), indices.end());
  for (std::size_t& index : shifted) {
    if (index >= range.size())
      throw InvalidArgument(
          concat("DatasetPart: got index ", index, ", expected one below ", range.size()));
    index += range.first;
  }
  return shifted;
}

}  // namespace detail

}  // namespace lockstep
