#include "parallel/buckets/comm_stream_scope.h"

#include <algorithm>

#include "device/device_communicator.h"

namespace lockstep::inline v0_2::detail {

std::optional<device::CommStream> comm_stream_of(const Group& group) {
  const auto* ranks = dynamic_cast<const device::DeviceCommunicator*>(&group.communicator());
  if (ranks == nullptr) return std::nullopt;
  return ranks->context().stream();
}

void GradientStreams::add_current(const std::optional<device::CommStream>& comm) {
  if (!comm) return;
  const c10::Stream current = comm->current();
  if (std::ranges::find(streams_, current) == streams_.end()) streams_.push_back(current);
}

void GradientStreams::order_before_current(const device::CommStream& comm) const {
  for (const auto& stream : streams_) device::CommStream::order(stream, comm.current());
}

CommStreamScope::CommStreamScope(const std::optional<device::CommStream>& comm) {
  if (!comm) return;
  caller_ = comm->current();
  guard_.emplace(comm->stream());
}

CommStreamScope::CommStreamScope(const std::optional<device::CommStream>& comm,
                                 const GradientStreams& gradients)
    : CommStreamScope(comm) {
  if (!comm) return;
  device::CommStream::order(*caller_, comm->stream());
  gradients.order_before_current(*comm);
}

void CommStreamScope::block_caller() const {
  if (guard_) device::CommStream::order(guard_->current_stream(), *caller_);
}

}  // namespace lockstep::detail
