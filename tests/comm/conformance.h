#pragma once

#include "comm/communicator.h"

namespace lockstep::testing {

/// How a group sums float32 and float64, where not all of them in the order of ranks.
struct Sums {
  /// The host of each rank, where floats are summed host by host and the wire dtype applies between
  /// hosts only. Empty where all ranks are alike.
  std::vector<int> hosts = {};
  /// Sums each slice in the order of a ring, without a reduced-precision wire dtype.
  bool ring = false;
};

/// The requirements on every backend: all collectives over dtypes, operations, sizes and places of
/// memory, compared byte for byte with scalar code.
/// Ranks: all.
/// Throws: std::runtime_error naming the first difference.
void check_collectives(Communicator& group, const Sums& sums = {});

/// Outstanding all_reduces, begun at random moments and waited for out of order, their buffers at
/// random places.
void check_in_flight(Communicator& group, const Sums& sums = {});

/// split() by color and key, its groups used at the same time as their parent.
void check_split(Communicator& group, const Sums& sums = {});

/// Sums of denormals are what the ranks' setting says, on every backend and whichever thread adds.
void check_denormals(Communicator& group);

/// Memory that other ranks find by its place, where ranks share memory.
void check_places(Communicator& group);

/// Messages between pairs of ranks, to oneself, in both directions at once.
void check_messages(Communicator& group);

/// Messages by tag and from any source, and their cancellation, where messages are matched by tag.
void check_tags(Communicator& group);

/// Waits with a limit, for any of several operations, and until another thread requests a stop.
void check_waits(Communicator& group);

/// All that is above.
void check_backend(Communicator& group, const Sums& sums = {});

/// Groups that only their members create, where the backend has such.
void check_new_group(Communicator& group);
/// The sum of the numbers that the ranks pass.
std::int64_t sum_of_ranks(Communicator& group, int rank);

/// Throws: std::runtime_error naming the rank unless it is as expected.
void require(bool as_expected, const Communicator& group, const std::string& what);

/// A message of one number.
Work send_number(Communicator& group, std::int64_t& number, int to, std::uint32_t tag);
Work recv_number(Communicator& group, std::int64_t& number, int from, std::uint32_t tag);

}  // namespace lockstep::testing
