#include "comm/messages/transfer.h"

namespace lockstep::inline v0_2::messages {

Transfer::Transfer(GroupTransport transport, const Operation& operation)
    : transport_(transport), operation_(operation) {
  with_.resize(static_cast<std::size_t>(size()));
}

std::vector<int> Transfer::partners() const {
  std::vector<int> members;
  for (int member = 0; member < size(); ++member) {
    if (with_[static_cast<std::size_t>(member)] > 0) members.push_back(member);
  }
  return members;
}

void Transfer::ended(int member, std::uint8_t* flag) {
  --with_[static_cast<std::size_t>(member)];
  --under_way_;
  if (flag != nullptr) *flag = 1;
}

void Transfer::send(const std::byte* data, std::size_t bytes, int member, Channel channel,
                    std::uint8_t* flag) {
  ++with_[static_cast<std::size_t>(member)];
  ++under_way_;
  if (bytes == 0) return ended(member, flag);
  transport_.send(data, bytes, member, channel,
                  [this, member, flag](std::size_t) { ended(member, flag); });
}

void Transfer::receive(std::byte* data, std::size_t bytes, int member, Channel channel,
                       std::uint8_t* flag) {
  ++with_[static_cast<std::size_t>(member)];
  ++under_way_;
  if (bytes == 0) return ended(member, flag);
  transport_.receive(data, bytes, member, channel,
                     [this, member, flag](std::size_t) { ended(member, flag); });
}

namespace {

/// From the operation and the placement of the ranks alone, which are the same on all members.
Algorithm chosen(const MessageGroup& group, const Operation& operation) {
  if (!sums_in_parts(operation)) return Algorithm::direct;
  if (group.algorithm != Algorithm::automatic) return group.algorithm;
  return cheapest(group.placement, operation.count * size_of(operation.dtype));
}

}  // namespace

std::unique_ptr<Transfer> make_transfer(GroupTransport transport, const Operation& operation) {
  switch (operation.collective) {
    case Collective::broadcast:
      return make_broadcast(transport, operation);
    case Collective::reduce_scatter:
      return make_direct_reduction(transport, operation);
    case Collective::all_reduce:
      return chosen(transport.group(), operation) == Algorithm::ring
                 ? make_ring_reduction(transport, operation)
                 : make_direct_reduction(transport, operation);
    default:
      return make_moves(transport, operation);
  }
}

}  // namespace lockstep::messages
