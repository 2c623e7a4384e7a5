#pragma once

#include <torch/data/datasets/base.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/group.h"

namespace lockstep {

/// The indices from first up to, without, last.
struct IndexRange {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t size() const { return last - first; }
  bool operator==(const IndexRange&) const = default;
};

/// One rank's part of size samples, cut in the order of ranks into parts of floor(size/N); the tail
/// that fills no row of one sample a rank belongs to nobody.
/// Throws: InvalidArgument for a rank outside the group.
/// Source: data_partition of SINGA's distributed examples
IndexRange partition_contiguous(std::size_t size, Replica replica);
IndexRange partition_contiguous(std::size_t size, const Group& group);

namespace detail {

/// A dataset's size. Throws: InvalidArgument if it has none.
std::size_t size_to_partition(std::optional<std::size_t> size);
/// The indices in the whole dataset. Throws: InvalidArgument for one beyond the range.
std::vector<std::size_t> shift(c10::ArrayRef<std::size_t> indices, IndexRange range);

}  // namespace detail

/// A run of another dataset's samples, as a dataset: index 0 is the run's first.
template <class D>
class DatasetPart
    : public torch::data::datasets::BatchDataset<DatasetPart<D>, typename D::BatchType> {
 public:
  DatasetPart(D whole, IndexRange range) : whole_(std::move(whole)), range_(range) {}

  /// Throws: InvalidArgument for an index that is not below size().
  typename D::BatchType get_batch(c10::ArrayRef<std::size_t> indices) override {
    return whole_.get_batch(detail::shift(indices, range_));
  }
  std::optional<std::size_t> size() const override { return range_.size(); }
  IndexRange range() const { return range_; }

 private:
  D whole_;
  IndexRange range_;
};

/// This rank's contiguous part of a dataset that every rank can read. To shuffle within the part,
/// as SINGA does, draw from it with DistributedSampler(part.size().value(), Replica{}, {.seed =
/// …}). Ranks: all with the same dataset; no communication. Throws: InvalidArgument for a dataset
/// that does not know its size. Source: partition_dataset of Needle's distributed extension
template <class D>
DatasetPart<D> partition_dataset(D dataset, const Group& group) {
  const IndexRange range = partition_contiguous(detail::size_to_partition(dataset.size()), group);
  return {std::move(dataset), range};
}

}  // namespace lockstep
