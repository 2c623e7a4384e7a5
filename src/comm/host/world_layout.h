#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/announcement.h"

// The layout of a world's shared memory. Everything here is zero in a new world, and has the same
// meaning in every process: numbers and offsets, never addresses.

namespace lockstep::inline v0_2::host {

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The world's first bytes.
struct Header {
  static constexpr std::uint64_t expected_magic = 0x70657473'6b636f6c;  // "lockstep"
  static constexpr std::uint32_t expected_version = 6;

  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t size;
  std::uint64_t heap_bytes;  ///< of each rank

  /// The one failure record: 0 none, 1 being written, 2 readable.
  alignas(cache_line) std::atomic<std::uint32_t> failed;
  std::int32_t failed_rank;
  std::int32_t failure_kind;
  std::int32_t failed_world_rank;
  char failure_text[2048];

  /// Ranks asleep, so that who publishes something need not look at each.
  alignas(cache_line) std::atomic<std::uint32_t> sleepers;
};

/// The operation that a rank has waited in for a while. Its fields hold while turn is odd.
struct WaitRecord {
  alignas(cache_line) std::atomic<std::uint64_t> turn;  ///< changes when a wait begins and ends
  std::atomic<std::uint64_t> group;                     ///< where the group's block lies
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> source;  ///< the bits of a Source
  std::atomic<std::int32_t> members;
  std::atomic<std::int32_t> member;  ///< this rank's number in the group
  std::atomic<std::int32_t> number;  ///< of the group
  std::atomic<std::int32_t> peer;    ///< of a message, or -1
  std::atomic<Collective> collective;
};

enum class RankStatus : std::uint32_t { absent, joined, left, gone };

/// The state of one rank, which all ranks can read.
struct RankState {
  alignas(cache_line) std::atomic<RankStatus> status;
  std::atomic<std::int32_t> pid;  ///< 0 until it is known, then as pid_space counts
  std::uint64_t pid_space;        ///< the pid namespace, written before pid
  char how[48];                   ///< how it left or ended; empty for a rank that left well
  bool flushes_denormals;         ///< written before status is joined

  /// A sleeping rank waits on its wake_flag; a rank that changes something it may wait for wakes it
  /// by the flag.
  alignas(cache_line) std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> wake_flag;
  std::atomic<std::uint32_t> raised_failure;  ///< whether the rank has raised the world's failure

  WaitRecord wait;

  /// The error that it ends with, as it recorded that itself: 0 none, 1 being written, 2 readable.
  alignas(cache_line) std::atomic<std::uint32_t> error;
  std::int32_t error_origin;  ///< the rank that met it first
  char error_text[1024];
};

/// A count that one rank publishes and others read, alone in its line.
struct Counter {
  alignas(cache_line) std::atomic<std::uint64_t> value;
};

/// One member of a group, as the search for deadlocks reads it.
struct Membership {
  alignas(cache_line) std::atomic<std::uint64_t> issued;  ///< collectives that it has begun
  std::atomic<std::int32_t> rank;  ///< its number in the world + 1; 0 until it has joined
};

inline constexpr std::uint64_t no_offset = ~std::uint64_t{0};

/// One member's announcement of one collective, and where its memory lies.
struct Post {
  alignas(cache_line) std::atomic<std::uint64_t> number;  ///< sequence + 1, written last
  std::uint64_t offset;         ///< where the input lies in the arena, or no_offset
  std::uint64_t output_offset;  ///< the same of the output
  std::uint8_t in_slot;         ///< whether the input came with it
  detail::Announcement announcement;
};

/// The mailbox of one ordered pair of members. The receiver writes the second line.
struct Mailbox {
  alignas(cache_line) std::atomic<std::uint64_t> sent;  ///< messages offered
  std::uint64_t offset;
  std::uint64_t count;
  std::uint32_t tag;
  std::uint8_t dtype;
  std::atomic<std::uint64_t> sends_begun;                ///< messages offered or to be offered
  alignas(cache_line) std::atomic<std::uint64_t> taken;  ///< messages received
  std::atomic<std::uint64_t> recvs_begun;                ///< messages received or to be received
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<RankStatus>::is_always_lock_free);

}  // namespace lockstep::host
