#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/announcement.h"

// The layout of a world's shared memory. Everything is zero in a new world. There are only numbers
// and offsets, never addresses, so that the contents are valid in every process.

namespace lockstep::inline v0_2::host {

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The beginning of the world's memory.
struct Header {
  static constexpr std::uint64_t expected_magic = 0x70657473'6b636f6c;  // "lockstep"
  static constexpr std::uint32_t expected_version = 6;

  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t size;
  std::uint64_t heap_bytes;  ///< of each rank

  /// State of the failure record below: 0 none, 1 being written, 2 readable.
  alignas(cache_line) std::atomic<std::uint32_t> failed;
  std::int32_t failed_rank;
  std::int32_t failure_kind;
  std::int32_t failed_world_rank;
  char failure_text[2048];

  /// Number of sleeping ranks. If it is 0, a rank that publishes data needs to wake no other.
  alignas(cache_line) std::atomic<std::uint32_t> sleepers;
};

/// The operation that a rank has waited for longer than a second. The fields are valid while turn
/// is odd.
struct WaitRecord {
  alignas(cache_line)
      std::atomic<std::uint64_t> turn;  ///< incremented when a wait begins and when it ends
  std::atomic<std::uint64_t> group;     ///< offset of the group's block
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> source;  ///< the bits of a Source
  std::atomic<std::int32_t> members;
  std::atomic<std::int32_t> member;  ///< this rank's index in the group
  std::atomic<std::int32_t> number;  ///< of the group
  std::atomic<std::int32_t> peer;    ///< other member of a send or recv; -1 for a collective
  std::atomic<Collective> collective;
};

enum class RankStatus : std::uint32_t { absent, joined, left, ended };

/// The state of one rank, which all ranks can read.
struct RankState {
  alignas(cache_line) std::atomic<RankStatus> status;
  std::atomic<std::int32_t> pid;  ///< 0 until it is known; in the namespace pid_namespace
  std::uint64_t pid_namespace;    ///< pid namespace of pid; written before pid
  char end_text[48];              ///< how the rank left or ended; empty if it left without an error
  bool flushes_denormals;         ///< written before status is joined

  /// A sleeping rank waits on its wake_flag, a futex. Another rank increments it to wake the rank.
  alignas(cache_line) std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> wake_flag;
  std::atomic<std::uint32_t> raised_failure;  ///< whether the rank has raised the world's failure

  WaitRecord wait;

  /// State of the error that the rank has recorded: 0 none, 1 being written, 2 readable.
  alignas(cache_line) std::atomic<std::uint32_t> error;
  std::int32_t error_origin;  ///< the rank that raised the error first
  char error_text[1024];
};

/// A counter that one rank writes and others read, alone in its cache line.
struct Counter {
  alignas(cache_line) std::atomic<std::uint64_t> value;
};

/// Data of one member of a group for the detection of deadlocks.
struct Membership {
  alignas(cache_line)
      std::atomic<std::uint64_t> issued;  ///< number of collectives that the member has begun
  std::atomic<std::int32_t> rank;         ///< its rank in the world + 1; 0 until it has joined
};

inline constexpr std::uint64_t no_offset = ~std::uint64_t{0};

/// One member's announcement of one collective, and the offsets of its memory.
struct AnnouncementEntry {
  alignas(cache_line) std::atomic<std::uint64_t> number;  ///< sequence + 1, written last
  std::uint64_t offset;         ///< of the input in the arena, or no_offset
  std::uint64_t output_offset;  ///< the same for the output
  std::uint8_t is_eager;        ///< whether the input is in the eager slot
  detail::Announcement announcement;
};

/// The mailbox of one ordered pair of members. The sender writes the first cache line, the receiver
/// the second.
struct Mailbox {
  alignas(cache_line) std::atomic<std::uint64_t> sent;  ///< messages offered
  std::uint64_t offset;
  std::uint64_t count;
  std::uint32_t tag;
  std::uint8_t dtype;
  std::atomic<std::uint64_t> sends_begun;                ///< number of the last send that has begun
  alignas(cache_line) std::atomic<std::uint64_t> taken;  ///< messages received
  std::atomic<std::uint64_t> recvs_begun;                ///< number of the last recv that has begun
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<RankStatus>::is_always_lock_free);

}  // namespace lockstep::host
