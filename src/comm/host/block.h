#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

/// The shared memory of one group: for each member its announcements, counters, mailboxes and
/// staging areas.
class Block {
 public:
  /// Collectives a member may be ahead of another.
  static constexpr std::uint64_t ring = 16;
  /// Inputs up to this size are sent with the announcement (eager). For inputs in the arena the
  /// limit is slot_bytes_from_arena.
  static constexpr std::size_t slot_bytes = 16 << 10;
  static constexpr std::size_t slot_bytes_from_arena = 2 << 10;
  /// Longer inputs outside the arena are staged by this much.
  static constexpr std::size_t chunk_bytes = 256 << 10;
  static constexpr std::size_t chunks = 2;

  Block(std::byte* base, int members) : base_(base), members_(members) {}

  std::byte* base() const { return base_; }
  int members() const { return members_; }
  std::byte* member_base(int member) const { return at<std::byte>(member, 0); }

  static std::size_t bytes(int members);
  /// Bytes of one member's area, of which the first lies behind head_bytes.
  static std::size_t member_bytes(int members);
  static constexpr std::size_t head_bytes = cache_line;

  /// Members that have not left yet.
  std::atomic<std::uint64_t>& attached() const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_);
  }
  /// Steps whose input the member has made available, and steps whose share of work it has done.
  Counter& arrived(int member) const { return *at<Counter>(member, 0); }
  Counter& worked(int member) const { return *at<Counter>(member, sizeof(Counter)); }
  Membership& membership(int member) const { return *at<Membership>(member, 2 * sizeof(Counter)); }
  Post& post(int member, std::uint64_t sequence) const {
    return *at<Post>(member, posts + sequence % ring * sizeof(Post));
  }
  std::byte* slot(int member, std::uint64_t sequence) const {
    return at<std::byte>(member, slots + sequence % ring * slot_bytes);
  }
  std::byte* chunk(int member, std::uint64_t step) const {
    return at<std::byte>(member, staging + step % chunks * chunk_bytes);
  }
  Mailbox& mailbox(int from, int to) const {
    return *at<Mailbox>(from, mailboxes + static_cast<std::size_t>(to) * sizeof(Mailbox));
  }

 private:
  static constexpr std::size_t posts = 2 * sizeof(Counter) + sizeof(Membership);
  static constexpr std::size_t slots = posts + ring * sizeof(Post);
  static constexpr std::size_t staging = slots + ring * slot_bytes;
  static constexpr std::size_t mailboxes = staging + chunks * chunk_bytes;

  template <class T>
  T* at(int member, std::size_t offset) const {
    return reinterpret_cast<T*>(base_ + head_bytes +
                                static_cast<std::size_t>(member) * member_bytes(members_) + offset);
  }

  std::byte* base_;
  int members_;
};

inline std::size_t Block::member_bytes(int members) {
  // Not a multiple of a page: equal places of two members must not fall on one cache set.
  return round_up(mailboxes + static_cast<std::size_t>(members) * sizeof(Mailbox), page) +
         17 * cache_line;
}

inline std::size_t Block::bytes(int members) {
  return head_bytes + static_cast<std::size_t>(members) * member_bytes(members);
}

}  // namespace lockstep::host
