#pragma once

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

#include "device/comm_stream.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The stream on which a group exchanges buckets; none for a group on the CPU.
std::optional<device::CommStream> comm_stream_of(const Group& group);

/// The streams that have written gradients since the begin of a backward. Autograd may run parts of
/// one backward on different streams.
class GradientStreams {
 public:
  /// Adds the current stream. No effect without a comm stream.
  void add_current(const std::optional<device::CommStream>& comm);
  /// Makes later work of the current stream wait for the work that these streams have now.
  void order_before_current(const device::CommStream& comm) const;

 private:
  std::vector<c10::Stream> streams_;
};

/// Makes the group's stream the current one until the end of the scope. No effect for a group on
/// the CPU.
class CommStreamScope {
 public:
  explicit CommStreamScope(const std::optional<device::CommStream>& comm);
  /// The same. Work in the scope comes after the work that the current stream and the streams of
  /// the gradients have at its begin.
  CommStreamScope(const std::optional<device::CommStream>& comm, const GradientStreams& gradients);
  /// Makes later work of the stream that was current before the scope wait for the work of the
  /// scope so far.
  void block_caller() const;

 private:
  std::optional<c10::Stream> caller_;
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace lockstep::detail
