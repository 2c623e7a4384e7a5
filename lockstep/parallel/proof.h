#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/group.h"
#include "lockstep/parallel/lanes.h"
#include "lockstep/sync/bucket.h"

namespace lockstep::detail {

/// The proof that replicas are in lockstep: at each exchange, one bucket's parameters, each bucket
/// in turn, are compared between ranks. It sends nothing of its own: a few bytes travel with a
/// maximum that is taken over ranks anyway.
class Proof {
 public:
  /// A checksum and its complement: the largest and the smallest of all ranks' checksums, byte by
  /// byte, which are equal when all are.
  static constexpr std::size_t bytes = 16;

  /// Compares at every so many exchanges; 0 never does.
  Proof(const Group& group, std::int64_t every) : group_(group), every_(every) {}

  /// Fills this rank's bytes. Their maximum over ranks is to be given to check().
  void write(std::int64_t step, const Lanes& lanes, std::span<std::uint8_t, bytes> own);

  /// Ranks: all of the group, with the same bytes.
  /// Throws: ReplicaError, on every rank, naming bucket, parameter and who holds what.
  void check(std::int64_t step, std::span<const std::uint8_t, bytes> largest) const;

 private:
  Group group_;
  std::int64_t every_;
  const Bucket* bucket_ = nullptr;  ///< the one whose turn it is, if any's
};

}  // namespace lockstep::detail
