#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/source.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// One collective as a value: what is checked, compared between ranks, logged and executed.
struct Operation {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  std::optional<Wire> wire = {};  ///< wire dtype of an all_reduce; none: its own

  const std::byte* input = nullptr;
  std::byte* output = nullptr;

  /// Elements of one part: of the whole buffer for all_reduce, broadcast, send and recv; of one
  /// rank's part else.
  std::size_t count = 0;
  /// Elements of each rank's part where they differ (all_gather, reduce_scatter, gather, scatter),
  /// else empty.
  std::vector<std::size_t> counts = {};

  int peer = -1;  ///< root of broadcast, gather and scatter; the other rank of send and recv
  std::uint32_t tag = 0;
  std::chrono::milliseconds timeout{};  ///< longest wait; zero takes the world's
  std::uint64_t sequence = 0;           ///< number in its group, from 1, given when it is issued

  /// The shape of the caller's tensor, for the comparison between ranks; empty for raw memory.
  std::vector<std::int64_t> shape = {};
  /// Which part of the program issues it, for the comparison between ranks.
  Source source = {};
  /// Kept until the operation is complete, so that the buffers outlive it.
  std::shared_ptr<const void> owner = {};
  /// The operation that this is a part of: what members announce to one another in its place.
  std::shared_ptr<const Operation> part_of = {};

  /// The form in which its elements leave a rank.
  DType travels_as() const { return wire ? wire->dtype : dtype; }

  /// Between two ranks, not all: send and recv.
  bool is_message() const {
    return collective == Collective::send || collective == Collective::recv;
  }
  bool has_root() const {
    return collective == Collective::broadcast || collective == Collective::gather ||
           collective == Collective::scatter;
  }
  /// Elements of rank's part, and how many elements lie before it.
  std::size_t part(int rank) const {
    return counts.empty() ? count : counts[static_cast<std::size_t>(rank)];
  }
  std::size_t part_begin(int rank) const;

  /// "all_reduce #17", for messages.
  std::string label() const;
};

}  // namespace lockstep
