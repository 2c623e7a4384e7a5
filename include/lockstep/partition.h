#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/samplers.h"

namespace lockstep::inline v0_2 {

/// The indices first, …, last − 1.
struct IndexRange {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t size() const { return last - first; }
  bool operator==(const IndexRange&) const = default;
};

/// The part of one rank of N: size samples are divided in rank order into parts of floor(size/N).
/// The last size mod N samples belong to no rank.
/// Throws: InvalidArgument for a rank outside the group.
/// Source: data_partition of SINGA's distributed examples
IndexRange partition_contiguous(std::size_t size, ShardSpec shard);
IndexRange partition_contiguous(std::size_t size, const Group& group);

namespace detail {

/// The size of a dataset.
/// Throws: InvalidArgument if it is unknown.
std::size_t size_to_partition(std::optional<std::size_t> size);
/// Converts indices in the range to indices in the whole dataset.
/// Throws: InvalidArgument for an index outside the range.
std::vector<std::size_t> shift(c10::ArrayRef<std::size_t> indices, IndexRange range);

}  // namespace detail

/// A contiguous range of another dataset's samples, as a dataset. Index 0 is the first sample of
/// the range.
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
/// as SINGA does, use DistributedSampler(part.size().value(), ShardSpec{}, {.seed = …}).
/// Ranks: all, with the same dataset; no communication.
/// Throws: InvalidArgument for a dataset of unknown size.
/// Source: partition_dataset of Needle's distributed extension
template <class D>
DatasetPart<D> partition_dataset(D dataset, const Group& group) {
  const IndexRange range = partition_contiguous(detail::size_to_partition(dataset.size()), group);
  return {std::move(dataset), range};
}

namespace detail {

/// Returns rank 0's next batch, or nullopt at the end.
using BatchSource = std::function<std::optional<torch::data::Example<>>()>;

[[noreturn]] void refuse_no_loader();

/// Result of scatter_from_rank0: a range to be iterated once.
class ScatteredBatches {
 public:
  using Iterator = RangeIterator<ScatteredBatches, torch::data::Example<>>;

  ScatteredBatches(BatchSource source, const Group& group)
      : source_(std::move(source)), group_(group.host()) {}

  Iterator begin() {
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend Iterator;

  torch::data::Example<>& peek() { return *current_; }
  void count() {}
  bool ended() const { return !current_; }
  void advance();

  BatchSource source_;
  Group group_;
  std::optional<torch::data::Example<>> current_;
};

}  // namespace detail

/// Scatters the batches of rank 0's loader over all ranks, for data that only rank 0 can read. Of a
/// batch with B rows, rank r of N gets the rows floor(r·B/N) to floor((r+1)·B/N) − 1, which may be
/// none: pass the number of rows to weight() of the wrapper. Only rank 0's loader is used; other
/// ranks may pass null.
///
///     for (auto& batch : lockstep::scatter_from_rank0(loader.get(), world)) …
///
/// Shapes: data and target of a batch have the same first dimension, and at most 8 dimensions.
/// Ranks: all. If they leave the loop early, all must leave at the same batch.
/// Throws: the exception of rank 0's loader on rank 0, a DataError with its text on the other
/// ranks; the group stays usable.
template <class Loader>
detail::ScatteredBatches scatter_from_rank0(Loader* loader, const Group& group) {
  detail::BatchSource source;
  if (group.rank() == 0) {
    using Position = decltype(std::begin(*loader));
    source = [loader,
              position =
                  std::optional<Position>()]() mutable -> std::optional<torch::data::Example<>> {
      if (loader == nullptr) detail::refuse_no_loader();
      position ? void(++*position) : void(position.emplace(std::begin(*loader)));
      if (*position == std::end(*loader)) return std::nullopt;
      return **position;
    };
  }
  return {std::move(source), group};
}

}  // namespace lockstep
