#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/host/world/world_layout.h"

namespace lockstep::inline v0_2::host {

/// Sizes of the shared memory of one member of a group.
struct BlockSizes {
  /// Number of collectives by which a member may be ahead of another: entries of its ring.
  static constexpr std::uint64_t ring = 16;
  /// Inputs up to this size are copied beside the announcement (eager). For inputs in the arena the
  /// limit is eager_bytes_from_arena.
  static constexpr std::size_t eager_bytes = 16 << 10;
  static constexpr std::size_t eager_bytes_from_arena = 2 << 10;
  /// Longer inputs outside the arena are copied in chunks of this size (staged). A step uses one
  /// chunk and fills the next, so two are needed. With four, a member does not write to a chunk
  /// that another core has read just before: docs/design/shared-memory.md.
  static constexpr std::size_t chunk_bytes = 256 << 10;
  static constexpr std::size_t chunks = 4;
};

/// The shared memory of one group. Each member has announcements with eager slots, counters,
/// staging chunks and mailboxes.
template <class AtomicsType, class Sizes = BlockSizes>
class BasicBlock : public Sizes {
 public:
  using Atomics = AtomicsType;
  using Counter = BasicCounter<Atomics>;
  using Membership = BasicMembership<Atomics>;
  using AnnouncementEntry = BasicAnnouncementEntry<Atomics>;
  using Mailbox = BasicMailbox<Atomics>;
  using Attached = typename Atomics::template Atomic<std::uint64_t>;
  using Sizes::chunk_bytes;
  using Sizes::chunks;
  using Sizes::eager_bytes;
  using Sizes::ring;

  BasicBlock(std::byte* base, int members) : base_(base), members_(members) {}

  std::byte* base() const { return base_; }
  int members() const { return members_; }
  std::byte* member_base(int member) const { return at<std::byte>(member, 0); }

  static std::size_t bytes(int members) {
    return head_bytes + static_cast<std::size_t>(members) * member_bytes(members);
  }
  /// Bytes of one member's area. The first area begins at head_bytes.
  static std::size_t member_bytes(int members) {
    // Not a multiple of a page, so that equal offsets of two members do not map to the same cache
    // set.
    return round_up(mailboxes + static_cast<std::size_t>(members) * sizeof(Mailbox), page) +
           17 * cache_line;
  }
  static constexpr std::size_t head_bytes = round_up(sizeof(Attached), cache_line);

  /// Number of members that have not left the group.
  Attached& attached() const { return *reinterpret_cast<Attached*>(base_); }
  /// The member leaves the group and uses the block no more.
  void leave() const { attached().fetch_sub(1, Atomics::order(Access::block_leave)); }
  /// Whether all members have left the group, so that the memory can be used for something else.
  bool all_left() const { return attached().load(Atomics::order(Access::block_left)) == 0; }
  /// Number of steps whose input the member has staged, and number of steps whose share of the work
  /// the member has finished.
  Counter& staged(int member) const { return *at<Counter>(member, 0); }
  Counter& finished(int member) const { return *at<Counter>(member, sizeof(Counter)); }
  Membership& membership(int member) const { return *at<Membership>(member, 2 * sizeof(Counter)); }
  AnnouncementEntry& entry(int member, std::uint64_t sequence) const {
    return *at<AnnouncementEntry>(member, entries + sequence % ring * sizeof(AnnouncementEntry));
  }
  std::byte* slot(int member, std::uint64_t sequence) const {
    return at<std::byte>(member, slots + sequence % ring * eager_bytes);
  }
  std::byte* chunk(int member, std::uint64_t step) const {
    return at<std::byte>(member, staging + step % chunks * chunk_bytes);
  }
  /// All of a member's area that is neither slot nor chunk. Operations populate those on first use.
  std::array<std::span<std::byte>, 2> records(int member) const {
    return {std::span(member_base(member), slots),
            std::span(at<std::byte>(member, mailboxes),
                      static_cast<std::size_t>(members_) * sizeof(Mailbox))};
  }
  Mailbox& mailbox(int from, int to) const {
    return *at<Mailbox>(from, mailboxes + static_cast<std::size_t>(to) * sizeof(Mailbox));
  }

 private:
  static constexpr std::size_t entries = 2 * sizeof(Counter) + sizeof(Membership);
  static constexpr std::size_t slots = entries + ring * sizeof(AnnouncementEntry);
  static constexpr std::size_t staging = slots + ring * eager_bytes;
  static constexpr std::size_t mailboxes = staging + chunks * chunk_bytes;

  template <class T>
  T* at(int member, std::size_t offset) const {
    return reinterpret_cast<T*>(base_ + head_bytes +
                                static_cast<std::size_t>(member) * member_bytes(members_) + offset);
  }

  std::byte* base_;
  int members_;
};

using Block = BasicBlock<StdAtomics>;

}  // namespace lockstep::host
