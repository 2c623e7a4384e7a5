#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "parallel/bucket_reducers.h"

namespace lockstep::inline v0_2::detail {

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
