#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/announcement.h"

// What lies in a world's shared memory. Everything here is zero in a new world, and has the same
// meaning in every process: numbers and offsets, never addresses.

namespace lockstep::host {

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The world's first bytes.
struct Header {
  static constexpr std::uint64_t expected_magic = 0x70657473'6b636f6c;  // "lockstep"
  static constexpr std::uint32_t expected_version = 5;

  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t size;
  std::uint64_t heap_bytes;  ///< of each rank

  /// The one failure record: 0 none, 1 being written, 2 readable.
  alignas(cache_line) std::atomic<std::uint32_t> failed;
  std::int32_t failed_rank;
  std::int32_t failure_kind;
  char failure_text[2048];

  /// Ranks asleep, so that who publishes something need not look at each.
  alignas(cache_line) std::atomic<std::uint32_t> sleepers;
};

enum class RankStatus : std::uint32_t { absent, joined, left, gone };

/// What everybody knows of one rank.
struct RankState {
  alignas(cache_line) std::atomic<RankStatus> status;
  std::atomic<std::int32_t> pid;  ///< 0 until it is known, then as pid_space counts
  std::uint64_t pid_space;        ///< the pid namespace, written before pid
  char how[48];                   ///< how it ended

  /// A sleeping rank waits on its bell; whoever changes something it may wait for rings it.
  alignas(cache_line) std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> bell;
};

/// A count that one rank publishes and others read, alone in its line.
struct Counter {
  alignas(cache_line) std::atomic<std::uint64_t> value;
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

/// The mailbox of one ordered pair of members, written by the sender but for taken.
struct Mailbox {
  alignas(cache_line) std::atomic<std::uint64_t> sent;  ///< messages offered
  std::uint64_t offset;
  std::uint64_t count;
  std::uint32_t tag;
  std::uint8_t dtype;
  alignas(cache_line) std::atomic<std::uint64_t> taken;  ///< messages received
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<RankStatus>::is_always_lock_free);

}  // namespace lockstep::host
