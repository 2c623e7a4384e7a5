#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/data_position.h"
#include "lockstep/error.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/agree.h"
#include "parallel/buckets/bucket_reducers.h"

namespace lockstep::inline v0_2::detail {

/// A digest of a tensor's elements in memory order, without the bytes between them. Tensors of
/// equal sizes, strides and values have equal digests. Of a sparse tensor, indices and values.
std::uint64_t checksum(const at::Tensor& tensor);

/// Detects whether an incoming gradient was added to a mean, or to a multiple of it, as clipping
/// makes. It compares (gradient − incoming) / mean of two non-zero elements of the mean, which must
/// be equal. A mean with a single non-zero element is not checked: any value is a multiple of it.
class MeanProbe {
 public:
  /// Saves two elements of a mean, which is dense, Float or Double.
  void set(const at::Tensor& mean);
  void reset() { count_ = 0; }

  /// Whether gradient = incoming + a multiple of the mean. Shapes: all of the mean's; the current
  /// values of mean are not read. only_added: nothing else has changed the mean in place, so one
  /// element is enough.
  bool was_added_to(const at::Tensor& mean, const at::Tensor& gradient, const at::Tensor& incoming,
                    bool only_added) const;

 private:
  struct Element {
    std::int64_t offset = 0;  ///< in the mean's memory
    double value = 0;
  };
  std::array<Element, 2> elements_;
  int count_ = 0;  ///< elements saved
};

class SparseGradients;

/// Compares the parameters of one bucket between ranks at each exchange, each bucket in turn. Of a
/// parameter with sparse gradients, which follow the buckets, it compares the rows that the
/// exchange before has averaged. It issues no collective of its own: the all_reduce of the
/// participation flags includes its bytes.
class ConsistencyCheck {
 public:
  /// every: exchanges between two comparisons; 0 disables the check.
  ConsistencyCheck(const Group& group, std::int64_t every) : group_(group), every_(every) {}

  /// This rank's checksum. The caller reduces it to its maximum over ranks for check().
  Compared<std::uint64_t> begin(std::int64_t step, const BucketReducers& reducers,
                                const SparseGradients& sparse);

  /// Ranks: all of the group, with the same maxima.
  /// Throws: ReplicaError, on every rank, with bucket, parameter and ranks.
  void check(std::int64_t step, const Compared<std::uint64_t>& maxima) const;

 private:
  Group group_;
  std::int64_t every_;
  std::size_t bucket_ = 0;  ///< the bucket that this step compares
  /// Names and checksums of its parameters; empty if this step compares none.
  std::vector<std::pair<std::string, std::uint64_t>> compared_;
};

/// Compares the ranks' positions in their data at each exchange, in the all_reduce of the
/// participation flags. A rank that has skipped a batch would combine its gradients with those of
/// other steps until the end.
class PositionCheck {
 public:
  explicit PositionCheck(const Group& group);

  /// This rank's DataPosition. None of a rank whose position is that of its exchange before: one
  /// without a DistributedSampler of this group, or without batches left (join_uneven()). The
  /// caller reduces it to its maximum over ranks for check().
  Compared<std::uint64_t> begin();
  /// Rank 0 writes one warning to stderr when positions differ for the first time.
  /// Ranks: all of the group, with the same maxima.
  void check(const Compared<std::uint64_t>& maxima);

 private:
  Group group_;
  std::shared_ptr<const DataPosition> position_;
  std::uint64_t before_;   ///< position at the exchange before
  std::uint64_t own_ = 0;  ///< position since then; 0 if it has not changed
  bool has_warned_ = false;
};

/// Finds a program that calls the own step of an optimizer which a DistributedOptimizer wraps, and
/// never the DistributedOptimizer's. Only a step changes the optimizer's state between backwards.
class OwnStepCheck {
 public:
  /// Digests of what a step changes.
  struct Marks {
    std::uint64_t state = 0;
    std::uint64_t parameters = 0;
  };

  explicit OwnStepCheck(const Group& group) : group_(group) {}

  /// From now on, until end(), find() reads the marks. has_gradients: whether the optimizer's own
  /// step finds gradients. Without any it changes nothing.
  void begin(std::function<Marks()> marks, bool has_gradients) {
    marks_ = std::move(marks);
    has_gradients_ = has_gradients;
    has_last_ = false;
    suspicions_ = 0;
  }
  /// Call at a step of the DistributedOptimizer.
  void end() { marks_ = nullptr; }
  /// Call when a backward begins. Returns whether the optimizer's state has changed before this
  /// backward and before the last one. Writes a notice at the tenth backward in a row before which
  /// parameters have changed, or with which the own step finds no gradients: other programs may do
  /// that, too.
  bool find();
  /// The error of a rank that has found such steps, or of the others.
  InvalidArgument error(bool is_own) const;

 private:
  Group group_;
  std::function<Marks()> marks_;
  bool has_gradients_ = true;
  Marks last_;  ///< at the last backward
  bool has_last_ = false;
  int state_changes_ = 0;  ///< in a row
  int suspicions_ = 0;     ///< backwards in a row
};

}  // namespace lockstep::detail
