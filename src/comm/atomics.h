#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

// The atomic accesses of the shared-memory protocol. Its steps are templates on `Atomics`:
// libraries use StdAtomics, and tests/protocol compiles the same templates with the atomics of
// Relacy, which explores interleavings and stale values. docs/design/protocol-proof.md has what
// each access orders, and the check that fails if its order is weaker.

namespace lockstep::inline v0_2::detail {

enum class AccessKind { load, store, read_modify_write, fence };

/// One place of the program that accesses an atomic of the protocol, or a fence.
enum class Access : std::uint8_t {
  // Announcements and step counters.
  announcement_publish,
  announcement_read,
  staged_publish,
  staged_read,
  finished_publish,
  finished_read,
  missing_read,
  // Blocks and members of groups.
  block_create,
  block_leave,
  block_left,
  member_join,
  member_read,
  issued_publish,
  issued_read,
  // Mailboxes.
  message_offer,
  message_offered,
  message_take,
  message_taken,
  message_begin,
  message_begun,
  message_taken_by_self,
  // Wake-ups.
  wake_fence,
  wake_all_fence,
  sleepers_read,
  asleep_read,
  wake_flag_add,
  wake_flag_read,
  asleep_set,
  sleepers_add,
  sleep_fence,
  sleepers_sub,
  asleep_clear,
  // The failure of the world, and the error of a rank.
  failure_claim,
  failure_publish,
  failure_begun,
  failure_read,
  failure_raise,
  failure_raised,
  error_claim,
  error_publish,
  error_read,
  // How a rank joins and ends.
  status_join,
  status_leave,
  status_end,
  status_running,
  status_read,
  end_claim,
  end_publish,
  end_read,
  pid_publish,
  pid_read,
  // The operation that a rank waits in.
  wait_write,
  wait_begin,
  wait_end,
  wait_turn,
  wait_field,
  wait_check,
  // Entries of the flight recorder.
  entry_invalidate,
  entry_write_fence,
  entry_write,
  entry_publish,
  entry_read,
  entry_field,
  entry_read_fence,
  entry_check,
  count
};

struct AccessRule {
  Access access;
  std::string_view name;
  AccessKind kind;
  std::memory_order order;
};

/// The order of each access, in the order of the enumerators.
inline constexpr auto access_rules = [] {
  using enum Access;
  using enum AccessKind;
  constexpr auto relaxed = std::memory_order_relaxed;
  constexpr auto acquire = std::memory_order_acquire;
  constexpr auto release = std::memory_order_release;
  constexpr auto seq_cst = std::memory_order_seq_cst;
  return std::to_array<AccessRule>({
      {announcement_publish, "announcement_publish", store, release},
      {announcement_read, "announcement_read", load, acquire},
      {staged_publish, "staged_publish", store, release},
      {staged_read, "staged_read", load, acquire},
      {finished_publish, "finished_publish", store, release},
      {finished_read, "finished_read", load, acquire},
      {missing_read, "missing_read", load, seq_cst},
      {block_create, "block_create", store, release},
      {block_leave, "block_leave", read_modify_write, seq_cst},
      {block_left, "block_left", load, seq_cst},
      {member_join, "member_join", store, release},
      {member_read, "member_read", load, acquire},
      {issued_publish, "issued_publish", store, release},
      {issued_read, "issued_read", load, acquire},
      {message_offer, "message_offer", store, release},
      {message_offered, "message_offered", load, acquire},
      {message_take, "message_take", store, release},
      {message_taken, "message_taken", load, acquire},
      {message_begin, "message_begin", store, release},
      {message_begun, "message_begun", load, acquire},
      {message_taken_by_self, "message_taken_by_self", load, relaxed},
      {wake_fence, "wake_fence", fence, seq_cst},
      {wake_all_fence, "wake_all_fence", fence, seq_cst},
      {sleepers_read, "sleepers_read", load, relaxed},
      {asleep_read, "asleep_read", load, relaxed},
      {wake_flag_add, "wake_flag_add", read_modify_write, seq_cst},
      {wake_flag_read, "wake_flag_read", load, seq_cst},
      {asleep_set, "asleep_set", store, relaxed},
      {sleepers_add, "sleepers_add", read_modify_write, seq_cst},
      {sleep_fence, "sleep_fence", fence, seq_cst},
      {sleepers_sub, "sleepers_sub", read_modify_write, seq_cst},
      {asleep_clear, "asleep_clear", store, relaxed},
      {failure_claim, "failure_claim", read_modify_write, seq_cst},
      {failure_publish, "failure_publish", store, release},
      {failure_begun, "failure_begun", load, acquire},
      {failure_read, "failure_read", load, acquire},
      {failure_raise, "failure_raise", store, release},
      {failure_raised, "failure_raised", load, seq_cst},
      {error_claim, "error_claim", read_modify_write, seq_cst},
      {error_publish, "error_publish", store, release},
      {error_read, "error_read", load, acquire},
      {status_join, "status_join", read_modify_write, seq_cst},
      {status_leave, "status_leave", read_modify_write, seq_cst},
      {status_end, "status_end", store, release},
      {status_running, "status_running", load, seq_cst},
      {status_read, "status_read", load, acquire},
      {end_claim, "end_claim", read_modify_write, seq_cst},
      {end_publish, "end_publish", store, release},
      {end_read, "end_read", load, acquire},
      {pid_publish, "pid_publish", store, release},
      {pid_read, "pid_read", load, acquire},
      {wait_write, "wait_write", store, release},
      {wait_begin, "wait_begin", read_modify_write, seq_cst},
      {wait_end, "wait_end", read_modify_write, seq_cst},
      {wait_turn, "wait_turn", load, acquire},
      {wait_field, "wait_field", load, acquire},
      {wait_check, "wait_check", load, acquire},
      {entry_invalidate, "entry_invalidate", store, relaxed},
      {entry_write_fence, "entry_write_fence", fence, release},
      {entry_write, "entry_write", store, relaxed},
      {entry_publish, "entry_publish", store, release},
      {entry_read, "entry_read", load, acquire},
      {entry_field, "entry_field", load, relaxed},
      {entry_read_fence, "entry_read_fence", fence, acquire},
      {entry_check, "entry_check", load, relaxed},
  });
}();

static_assert([] {
  for (std::size_t i = 0; i < access_rules.size(); ++i) {
    if (access_rules[i].access != static_cast<Access>(i)) return false;
  }
  return access_rules.size() == static_cast<std::size_t>(Access::count);
}());

constexpr const AccessRule& rule_of(Access access) {
  return access_rules[static_cast<std::size_t>(access)];
}

/// The atomics of the libraries.
struct StdAtomics {
  template <class T>
  using Atomic = std::atomic<T>;
  /// Data that the atomics of the protocol guard.
  template <class T>
  using Plain = T;

  static constexpr std::memory_order order(Access access) { return rule_of(access).order; }
  static void fence(Access access) noexcept { std::atomic_thread_fence(order(access)); }

  /// Sleeps until wake() is called for the word, at most this long. Returns at once if the word
  /// does not have the expected value. May return without a reason.
  static void wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                   std::chrono::nanoseconds longest) noexcept;
  /// Wakes the threads of all processes that sleep on the word.
  static void wake(Atomic<std::uint32_t>& word) noexcept;
};

}  // namespace lockstep::detail
