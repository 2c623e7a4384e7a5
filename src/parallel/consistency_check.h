#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/bucket_reducers.h"

namespace lockstep::inline v0_2::detail {

/// A digest of a tensor's elements as they lie in memory: tensors of the same sizes, strides and
/// values have the same. Bytes between the elements do not count.
std::uint64_t checksum(const at::Tensor& tensor);

/// Tells whether an incoming gradient was added to a mean, or to a multiple of it as clipping
/// leaves. It looks at two elements of the mean that are not zero: (gradient − incoming) / mean
/// must be the same for both. A mean with a single such element is not watched, since any value is
/// a multiple of it.
class MeanProbe {
 public:
  /// Remembers a mean. Dense, Float or Double.
  void set(const at::Tensor& mean);
  void reset() { known_ = 0; }

  /// Whether gradient is what has come in and the mean. Shapes: all three alike, mean as it was
  /// set, whatever it holds now.
  bool was_added_to(const at::Tensor& mean, const at::Tensor& gradient,
                    const at::Tensor& incoming) const;

 private:
  struct Element {
    std::int64_t offset = 0;  ///< in the mean's memory
    double value = 0;
  };
  std::array<Element, 2> elements_;
  int known_ = 0;  ///< how many of them; fewer than two tell nothing
};

/// Compares one bucket's parameters between ranks at each exchange, each bucket in turn. It issues
/// no collective: its bytes are reduced to their maximum together with the participation flags.
class ConsistencyCheck {
 public:
  /// A checksum and its complement. Their largest bytes over ranks are complements of one another
  /// if, and only if, all checksums are equal.
  static constexpr std::size_t bytes = 16;

  /// Compares at every so many exchanges; 0 never does.
  ConsistencyCheck(const Group& group, std::int64_t every) : group_(group), every_(every) {}

  /// Fills this rank's bytes. check() takes their maximum over ranks.
  void write(std::int64_t step, const BucketReducers& reducers, std::span<std::uint8_t, bytes> own);

  /// Ranks: all of the group, with the same bytes.
  /// Throws: ReplicaError, on every rank, that names bucket, parameter and ranks.
  void check(std::int64_t step, std::span<const std::uint8_t, bytes> largest) const;

 private:
  Group group_;
  std::int64_t every_;
  const Bucket* bucket_ = nullptr;  ///< the one that this step compares, if any
};

}  // namespace lockstep::detail
