#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "comm/host/world/world_layout.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::host {

/// Publishes that the rank waits.
template <class Atomics>
void begin_wait(BasicWaitRecord<Atomics>& record, const Waited& waited) {
  typename BasicWaitRecord<Atomics>::Words words{};
  std::memcpy(words.data(), &waited, sizeof waited);
  for (std::size_t i = 0; i < words.size(); ++i) {
    record.words[i].store(words[i], Atomics::order(Access::wait_write));
  }
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
  typename BasicWaitRecord<Atomics>::Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = record.words[i].load(Atomics::order(Access::wait_field));
  }
  if (record.turn.load(Atomics::order(Access::wait_check)) != turn) return std::nullopt;
  WaitTurn wait{.turn = turn, .waited = {}};
  std::memcpy(static_cast<void*>(&wait.waited), words.data(), sizeof wait.waited);
  return wait;
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
