#include "comm/mpi/transfer.h"

#include <algorithm>

#include "comm/mpi/mpi_communicator.h"

// Note [How long a piece is]
// MPI sends a message up to its eager limit at once (over TCP 64 KiB, its own header included). A
// longer message first asks the receiver. Between hosts the request and its reply queue behind all
// bytes that are on their way, and the link waits for them. At 1 Gbit/s, 25 MiB took 269 ms in
// pieces of 64 KiB or more, and 219 ms in pieces of 60 KiB. The link alone takes 210 ms.
// Within a host nothing queues, and each message costs: four ranks took a fifth to a half longer in
// such short pieces. Eager messages to a member that is late wait in its MPI: in a ring, up to a
// slice.

namespace lockstep::inline v0_2::mpi {

Transfer::Pieces Transfer::pieces() const {
  const bool between_hosts = group_.placement().hosts > 1;
  return between_hosts ? Pieces{.bytes = 60 << 10, .window = 8}
                       : Pieces{.bytes = 512 << 10, .window = 4};
}

Transfer::Transfer(const MpiCommunicator& group, const Operation& operation)
    : group_(group), operation_(operation), rank_(group.rank()), size_(group.size()) {
  with_.resize(static_cast<std::size_t>(size_));
}

std::vector<int> Transfer::partners() const {
  std::vector<int> members;
  for (int member = 0; member < size_; ++member) {
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
  group_.send(data, bytes, member, channel,
              [this, member, flag](std::size_t) { ended(member, flag); });
}

void Transfer::receive(std::byte* data, std::size_t bytes, int member, Channel channel,
                       std::uint8_t* flag) {
  ++with_[static_cast<std::size_t>(member)];
  ++under_way_;
  if (bytes == 0) return ended(member, flag);
  group_.receive(data, bytes, member, channel,
                 [this, member, flag](std::size_t) { ended(member, flag); });
}

namespace {

/// By what the operation and the places of the ranks say, which all members know alike: a forced
/// algorithm, else the cheaper one.
Algorithm chosen(const MpiCommunicator& group, const Operation& operation) {
  if (!sums_in_parts(operation)) return Algorithm::direct;
  const auto forced = group.context().options().algorithm;
  if (forced != Algorithm::automatic) return forced;
  return cheapest(group.placement(), operation.count * size_of(operation.dtype));
}

}  // namespace

std::unique_ptr<Transfer> make_transfer(const MpiCommunicator& group, const Operation& operation) {
  switch (operation.collective) {
    case Collective::broadcast:
      return make_broadcast(group, operation);
    case Collective::reduce_scatter:
      return make_direct_reduction(group, operation);
    case Collective::all_reduce:
      return chosen(group, operation) == Algorithm::ring ? make_ring_reduction(group, operation)
                                                         : make_direct_reduction(group, operation);
    default:
      return make_moves(group, operation);
  }
}

}  // namespace lockstep::mpi
