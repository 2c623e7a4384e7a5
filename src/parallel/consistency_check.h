#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/bucket_reducers.h"

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
  /// values of mean are not read.
  bool was_added_to(const at::Tensor& mean, const at::Tensor& gradient,
                    const at::Tensor& incoming) const;

 private:
  struct Element {
    std::int64_t offset = 0;  ///< in the mean's memory
    double value = 0;
  };
  std::array<Element, 2> elements_;
  int count_ = 0;  ///< elements saved; with fewer than two, was_added_to() returns false
};

class SparseGradients;

/// Compares the parameters of one bucket between ranks at each exchange, each bucket in turn. Of a
/// parameter with sparse gradients, which follow the buckets, it compares the rows that the
/// exchange before has averaged. It issues no collective of its own: the all_reduce of the
/// participation flags includes its bytes.
class ConsistencyCheck {
 public:
  /// A checksum and its complement. Their bytewise maxima over ranks are complements of each other
  /// if, and only if, all checksums are equal.
  static constexpr std::size_t bytes = 16;

  /// every: exchanges between two comparisons; 0 disables the check.
  ConsistencyCheck(const Group& group, std::int64_t every) : group_(group), every_(every) {}

  /// Writes this rank's bytes. The caller reduces them to their maximum over ranks for check().
  void write(std::int64_t step, const BucketReducers& reducers, const SparseGradients& sparse,
             std::span<std::uint8_t, bytes> own);

  /// Ranks: all of the group, with the same maxima.
  /// Throws: ReplicaError, on every rank, with bucket, parameter and ranks.
  void check(std::int64_t step, std::span<const std::uint8_t, bytes> maxima) const;

 private:
  struct Compared {
    std::string name;  ///< of a parameter
    std::uint64_t checksum;
  };

  Group group_;
  std::int64_t every_;
  std::size_t bucket_ = 0;          ///< the bucket that this step compares
  std::vector<Compared> compared_;  ///< its parameters; empty if this step compares none
};

}  // namespace lockstep::detail
