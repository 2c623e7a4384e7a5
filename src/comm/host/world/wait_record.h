#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "comm/host/world/world_layout.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::host {

/// The operation that a rank waits in, and the group that it belongs to.
struct Waited {
  std::uint64_t group = 0;  ///< offset of the group's block in the arena
  int members = 0;          ///< number of members of the group
  int member = 0;           ///< this rank's index in the group
  int number = 0;           ///< number of the group; 0 is the world
  Collective collective = Collective::barrier;
  /// Other member of a send or recv; -1 for a collective, and for a recv from any source.
  int peer = -1;
  std::uint64_t sequence = 0;
  Source source = {};

  bool operator==(const Waited&) const = default;
};

/// Publishes that the rank waits.
template <class Atomics>
void begin_wait(BasicWaitRecord<Atomics>& record, const Waited& waited) {
  constexpr auto write = [](auto& field, auto value) {
    field.store(value, Atomics::order(Access::wait_write));
  };
  write(record.group, waited.group);
  write(record.members, waited.members);
  write(record.member, waited.member);
  write(record.number, waited.number);
  write(record.collective, waited.collective);
  write(record.peer, waited.peer);
  write(record.sequence, waited.sequence);
  write(record.source, std::bit_cast<std::uint64_t>(waited.source));
  record.turn.fetch_add(1, Atomics::order(Access::wait_begin));
}

/// Publishes that the rank no longer waits.
template <class Atomics>
void end_wait(BasicWaitRecord<Atomics>& record) {
  record.turn.fetch_add(1, Atomics::order(Access::wait_end));
}

struct WaitTurn {
  std::uint64_t turn;  ///< identifies the wait; every wait of a rank has another turn
  Waited waited;
};

/// The published wait of the rank. Empty if the rank does not wait, or its wait changes meanwhile.
template <class Atomics>
std::optional<WaitTurn> read_wait(const BasicWaitRecord<Atomics>& record) {
  const auto turn = record.turn.load(Atomics::order(Access::wait_turn));
  if (turn % 2 == 0) return std::nullopt;
  constexpr auto read = [](const auto& field) {
    return field.load(Atomics::order(Access::wait_field));
  };
  const Waited waited{.group = read(record.group),
                      .members = read(record.members),
                      .member = read(record.member),
                      .number = read(record.number),
                      .collective = read(record.collective),
                      .peer = read(record.peer),
                      .sequence = read(record.sequence),
                      .source = std::bit_cast<Source>(read(record.source))};
  if (record.turn.load(Atomics::order(Access::wait_check)) != turn) return std::nullopt;
  return WaitTurn{.turn = turn, .waited = waited};
}

/// Publishes that the member has begun the collective with this sequence number.
template <class Block>
void set_issued(const Block& block, int member, std::uint64_t sequence) {
  block.membership(member).issued.store(sequence + 1,
                                        Block::Atomics::order(Access::issued_publish));
}

/// Publishes which rank of the world the member is.
template <class Block>
void set_member_rank(const Block& block, int member, int rank) {
  block.membership(member).rank.store(rank + 1, Block::Atomics::order(Access::member_join));
}

/// The member's rank in the world; negative if it has not joined the group, or the group does not
/// exist any more.
template <class Block>
int member_rank(const Block& block, int member) {
  return block.membership(member).rank.load(Block::Atomics::order(Access::member_read)) - 1;
}

/// Whether the member has begun an operation that advances the one that another member of its group
/// waits for. That is the collective, a receive that takes the message, or a send not yet taken.
template <class Block>
bool has_begun(const Block& block, const Waited& waited, int member) {
  const auto begun = Block::Atomics::order(Access::message_begun);
  const auto taken = Block::Atomics::order(Access::message_taken);
  switch (waited.collective) {
    case Collective::send:
      // The member closes a receive after it has taken the message.
      return block.mailbox(waited.member, member).open_recvs.load(begun) > 0 ||
             block.mailbox(waited.member, member).taken.load(taken) >= waited.sequence;
    case Collective::recv:
      return block.mailbox(member, waited.member).sends_begun.load(begun) >
             block.mailbox(member, waited.member).taken.load(taken);
    default:
      return block.membership(member).issued.load(Block::Atomics::order(Access::issued_read)) >
             waited.sequence;
  }
}

}  // namespace lockstep::host
