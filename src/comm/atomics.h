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

/// X(access, kind, order) for each place of the program that accesses an atomic of the protocol, or
/// a fence.
#define LOCKSTEP_ACCESSES(X)                               \
  /* Announcements and step counters. */                   \
  X(announcement_publish, store, release)                  \
  X(announcement_read, load, acquire)                      \
  X(staged_publish, store, release)                        \
  X(staged_read, load, acquire)                            \
  X(finished_publish, store, release)                      \
  X(finished_read, load, acquire)                          \
  X(missing_read, load, seq_cst)                           \
  /* Blocks and members of groups. */                      \
  X(block_create, store, release)                          \
  X(block_leave, read_modify_write, seq_cst)               \
  X(block_left, load, seq_cst)                             \
  X(member_join, store, release)                           \
  X(member_read, load, acquire)                            \
  X(issued_publish, store, release)                        \
  X(issued_read, load, acquire)                            \
  /* Mailboxes. */                                         \
  X(message_offer, store, release)                         \
  X(message_offered, load, acquire)                        \
  X(message_take, store, release)                          \
  X(message_taken, load, acquire)                          \
  X(message_begin, store, release)                         \
  X(message_begun, load, acquire)                          \
  X(message_taken_by_self, load, relaxed)                  \
  /* Wake-ups. */                                          \
  X(wake_fence, fence, seq_cst)                            \
  X(wake_all_fence, fence, seq_cst)                        \
  X(sleepers_read, load, relaxed)                          \
  X(asleep_read, load, relaxed)                            \
  X(wake_flag_add, read_modify_write, seq_cst)             \
  X(wake_flag_read, load, seq_cst)                         \
  X(asleep_set, store, relaxed)                            \
  X(sleepers_add, read_modify_write, seq_cst)              \
  X(sleep_fence, fence, seq_cst)                           \
  X(sleepers_sub, read_modify_write, seq_cst)              \
  X(asleep_clear, store, relaxed)                          \
  /* The failure of the world, and the error of a rank. */ \
  X(failure_claim, read_modify_write, seq_cst)             \
  X(failure_publish, store, release)                       \
  X(failure_begun, load, acquire)                          \
  X(failure_read, load, acquire)                           \
  X(failure_raise, store, release)                         \
  X(failure_raised, load, seq_cst)                         \
  X(error_claim, read_modify_write, seq_cst)               \
  X(error_publish, store, release)                         \
  X(error_read, load, acquire)                             \
  /* How a rank joins and ends. */                         \
  X(status_join, read_modify_write, seq_cst)               \
  X(status_leave, read_modify_write, seq_cst)              \
  X(status_end, store, release)                            \
  X(status_running, load, seq_cst)                         \
  X(status_read, load, acquire)                            \
  X(end_claim, read_modify_write, seq_cst)                 \
  X(end_publish, store, release)                           \
  X(end_read, load, acquire)                               \
  X(pid_publish, store, release)                           \
  X(pid_read, load, acquire)                               \
  /* The operation that a rank waits in. */                \
  X(wait_write, store, release)                            \
  X(wait_begin, read_modify_write, seq_cst)                \
  X(wait_end, read_modify_write, seq_cst)                  \
  X(wait_turn, load, acquire)                              \
  X(wait_field, load, acquire)                             \
  X(wait_check, load, acquire)                             \
  /* Entries of the flight recorder. */                    \
  X(entry_invalidate, store, relaxed)                      \
  X(entry_write_fence, fence, release)                     \
  X(entry_write, store, relaxed)                           \
  X(entry_publish, store, release)                         \
  X(entry_read, load, acquire)                             \
  X(entry_field, load, relaxed)                            \
  X(entry_read_fence, fence, acquire)                      \
  X(entry_check, load, relaxed)

enum class Access : std::uint8_t {
#define LOCKSTEP_ENUMERATOR(access, kind, order) access,
  LOCKSTEP_ACCESSES(LOCKSTEP_ENUMERATOR)
#undef LOCKSTEP_ENUMERATOR
      count
};

struct AccessRule {
  Access access;
  std::string_view name;
  AccessKind kind;
  std::memory_order order;
};

/// The order of each access, in the order of the enumerators.
inline constexpr auto access_rules = std::to_array<AccessRule>({
#define LOCKSTEP_RULE(access, kind, order) \
  {Access::access, #access, AccessKind::kind, std::memory_order::order},
    LOCKSTEP_ACCESSES(LOCKSTEP_RULE)
#undef LOCKSTEP_RULE
});

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
