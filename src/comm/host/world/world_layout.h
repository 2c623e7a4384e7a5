#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "comm/announcement.h"
#include "comm/atomics.h"
#include "comm/operation.h"
#include "core/failure.h"

// The layout of a world's shared memory. Everything is zero in a new world. There are only numbers
// and offsets, never addresses, so that the contents are valid in every process.

namespace lockstep::inline v0_2::host {

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

using detail::Access;
using detail::StdAtomics;

/// The state of a record that many ranks may write, and that only the first one writes. If the
/// writer dies meanwhile, the record never becomes readable.
template <class Atomics, Access claim, Access publish, Access read>
class OnceRecord {
 public:
  /// Calls write(), which writes the data of the record, unless a rank has begun to write before.
  /// Returns whether it was called.
  template <class Write>
  bool write_once(const Write& write) {
    std::uint32_t none = 0;
    if (!state_.compare_exchange_strong(none, writing, Atomics::order(claim))) {
      return false;
    }
    write();
    state_.store(readable_state, Atomics::order(publish));
    return true;
  }

  /// Whether the data can be read.
  bool readable() const { return state_.load(Atomics::order(read)) == readable_state; }

  /// Whether a rank has begun to write.
  bool begun(Access access) const { return state_.load(Atomics::order(access)) != 0; }

 private:
  static constexpr std::uint32_t writing = 1;
  static constexpr std::uint32_t readable_state = 2;

  typename Atomics::template Atomic<std::uint32_t> state_;  ///< 0: nobody has begun to write
};

/// The beginning of the world's memory.
template <class Atomics>
struct BasicHeader {
  static constexpr std::uint64_t expected_magic = 0x70657473'6b636f6c;  // "lockstep"
  static constexpr std::uint32_t expected_version = 12;

  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t size;
  std::uint64_t heap_bytes;  ///< of each rank
  char heap_bound[256];      ///< HeapSize::bound

  /// State of the failure record below.
  alignas(cache_line) OnceRecord<Atomics, Access::failure_claim, Access::failure_publish,
                                 Access::failure_read> failed;
  typename Atomics::template Plain<std::int32_t> failed_rank;
  detail::Failure::Kind failure_kind;
  std::int32_t failed_elsewhere;
  char failure_text[2048];

  /// Number of sleeping ranks. If it is 0, a rank that publishes data needs to wake no other.
  alignas(cache_line) typename Atomics::template Atomic<std::uint32_t> sleepers;
};

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

/// The operation that a rank has waited for longer than a second. It is valid while turn is odd.
template <class Atomics>
struct BasicWaitRecord {
  using Atomic = typename Atomics::template Atomic<std::uint64_t>;
  using Words = std::array<std::uint64_t, sizeof(Waited) / sizeof(std::uint64_t)>;

  alignas(cache_line) Atomic turn;         ///< incremented when a wait begins and when it ends
  Atomic words[std::tuple_size_v<Words>];  ///< of the Waited
};

enum class RankStatus : std::uint32_t { absent, joined, left, ended };

/// How a rank ended: "SIGKILL".
struct EndText {
  char text[48];
};

/// The state of one rank, which all ranks can read.
template <class Atomics>
struct BasicRankState {
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;
  template <class T>
  using Plain = typename Atomics::template Plain<T>;

  alignas(cache_line) Atomic<RankStatus> status;
  Atomic<std::int32_t> pid;            ///< 0 until it is known; in the namespace pid_namespace
  Plain<std::uint64_t> pid_namespace;  ///< pid namespace of pid; written before pid
  /// How the rank left; empty if it left without an error. The rank writes it before it sets its
  /// status to left.
  Plain<EndText> leave_text;
  bool flushes_denormals;  ///< written before status is joined
  /// How the process of the rank ended. The first rank or launcher that detects the end writes it.
  OnceRecord<Atomics, Access::end_claim, Access::end_publish, Access::end_read> end;
  Plain<EndText> end_text;

  /// A sleeping rank waits on its wake_flag, a futex. Another rank increments it to wake the rank.
  alignas(cache_line) Atomic<std::uint32_t> asleep;
  Atomic<std::uint32_t> wake_flag;
  Atomic<std::uint32_t> raised_failure;  ///< whether the rank has raised the world's failure

  BasicWaitRecord<Atomics> wait;

  /// State of the error that the rank has recorded. An error that explains no failure is in
  /// error_slot only.
  alignas(cache_line)
      OnceRecord<Atomics, Access::error_claim, Access::error_publish, Access::error_read> error;
  Plain<std::int32_t> error_origin;  ///< the rank that raised the error first
  std::int32_t error_world_rank;     ///< the number of the rank in texts
  detail::ErrorSlot error_slot;
};

/// A counter that one rank writes and others read, alone in its cache line.
template <class Atomics>
struct BasicCounter {
  alignas(cache_line) typename Atomics::template Atomic<std::uint64_t> value;
};

/// Data of one member of a group for the detection of deadlocks.
template <class Atomics>
struct BasicMembership {
  /// Number of collectives that the member has begun.
  alignas(cache_line) typename Atomics::template Atomic<std::uint64_t> issued;
  /// Its rank in the world + 1; 0 until it has joined.
  typename Atomics::template Atomic<std::int32_t> rank;
};

inline constexpr std::uint64_t no_offset = ~std::uint64_t{0};

/// One member's announcement of one collective, and the offsets of its memory.
template <class Atomics>
struct BasicAnnouncementEntry {
  template <class T>
  using Plain = typename Atomics::template Plain<T>;

  /// Sequence + 1, written last.
  alignas(cache_line) typename Atomics::template Atomic<std::uint64_t> number;
  Plain<std::uint64_t> offset;         ///< of the input in the arena, or no_offset
  Plain<std::uint64_t> output_offset;  ///< the same for the output
  Plain<std::uint8_t> is_eager;        ///< whether the input is in the eager slot
  Plain<detail::Announcement> announcement;
};

/// The mailbox of one ordered pair of members. The sender writes the first cache line, the receiver
/// the second.
template <class Atomics>
struct BasicMailbox {
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;
  template <class T>
  using Plain = typename Atomics::template Plain<T>;

  alignas(cache_line) Atomic<std::uint64_t> sent;  ///< messages offered
  Plain<std::uint64_t> offset;
  Plain<std::uint64_t> count;
  Plain<std::uint32_t> tag;
  Plain<std::uint8_t> dtype;
  Plain<std::uint8_t> is_announcement;
  Atomic<std::uint64_t> sends_begun;                ///< number of the last send that has begun
  alignas(cache_line) Atomic<std::uint64_t> taken;  ///< messages received
  Atomic<std::uint64_t> open_recvs;  ///< receives that this message may complete, not complete yet
};

using Header = BasicHeader<StdAtomics>;
using RankState = BasicRankState<StdAtomics>;
using AnnouncementEntry = BasicAnnouncementEntry<StdAtomics>;
using Mailbox = BasicMailbox<StdAtomics>;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<RankStatus>::is_always_lock_free);

}  // namespace lockstep::host
