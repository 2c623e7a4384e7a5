#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <type_traits>

#include "tests/protocol/relacy.h"

namespace lockstep::testing {

using detail::Access;
using detail::AccessKind;

/// A weaker order in place of that of the libraries.
struct Weakening {
  Access access;
  std::memory_order order;  ///< relaxed: no fence
};

using Accesses = std::bitset<static_cast<std::size_t>(Access::count)>;

/// What the checks set, and what they record. Relacy runs all ranks in one thread.
struct Settings {
  std::optional<Weakening> weakening;
  Accesses used;    ///< so far
  int victim = -1;  ///< the rank that dies before one of its accesses; -1: none
};
inline Settings settings;

/// An order of an access, for the history of a failed check.
struct Order {
  std::memory_order order;
  Access access;
};

/// Ends the check as failed.
inline void fail_test(const char* what) {
  rl::ctx().fail_test(what, rl::test_result_user_assert_failed, rl::debug_info(what, "", 0));
}

/// Whether only one rank stores what the access reads.
constexpr bool has_one_writer(Access access) {
  using enum Access;
  return access == announcement_read || access == staged_read || access == finished_read;
}

/// Both enumerations have the same values.
constexpr rl::memory_order relacy_order(std::memory_order order) {
  return static_cast<rl::memory_order>(order);
}
static_assert(relacy_order(std::memory_order::relaxed) == rl::mo_relaxed);
static_assert(relacy_order(std::memory_order::acquire) == rl::mo_acquire);
static_assert(relacy_order(std::memory_order::release) == rl::mo_release);
static_assert(relacy_order(std::memory_order::acq_rel) == rl::mo_acq_rel);
static_assert(relacy_order(std::memory_order::seq_cst) == rl::mo_seq_cst);
inline rl::debug_info place_of(Order order) {
  return {detail::rule_of(order.access).name.data(), "", 0};
}

/// The system calls that the protocol uses, and the ends of processes. Nothing of them orders
/// memory, except that a process that has ended has done all its stores before.
class Kernel {
 public:
  static constexpr int most_ranks = 4;

  /// The kernel of the current iteration.
  static Kernel& get() { return *current_; }

  Kernel() { current_ = this; }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Blocks the rank if the word has this value. A sleep ends by wake(), or after its longest time.
  /// The latter happens only a few times after each death of a process: else, a sleep without a
  /// wake-up is a deadlock, which Relacy reports.
  void wait(const void* word, bool has_expected_value) {
    const auto rank = rl::thread_index();
    if (!has_expected_value) return;
    if (naps_[rank] == naps_after_a_death * deaths_) {
      sleeps_on_[rank] = word;
      rl::ctx().park_current_thread(false, false, false, rl::debug_info("futex wait", "", 0));
    }
    if (naps_[rank] == naps_after_a_death * deaths_) return;
    ++naps_[rank];
    yield();  // in that time all stores have become visible
  }

  /// Ends the sleeps on the word, or all sleeps without one.
  void wake(const void* word) {
    for (std::size_t rank = 0; rank < sleeps_on_.size(); ++rank) {
      if (sleeps_on_[rank] == nullptr || (word != nullptr && sleeps_on_[rank] != word)) continue;
      sleeps_on_[rank] = nullptr;
      rl::ctx().unpark_thread(static_cast<rl::thread_id_t>(rank), false,
                              rl::debug_info("futex wake", "", 0));
    }
  }

  /// Blocks a rank that spins until ready() is true for the last values that were stored. A poll
  /// before that changes nothing, so it need not be explored.
  void spin_until(const std::function<bool()>& ready) {
    if (is_ready(ready)) return;
    spins_until_[rl::thread_index()] = &ready;
    rl::ctx().park_current_thread(false, false, false, rl::debug_info("spin", "", 0));
  }

  /// Whether ready() is true for the last values.
  bool is_ready(const std::function<bool()>& ready) {
    peeks_ = true;
    const bool is = ready();
    peeks_ = false;
    return is;
  }

  /// Lets other ranks run after a poll that saw old values.
  void yield() { rl::ctx().yield(1, rl::debug_info("yield", "", 0)); }
  /// Called after each store.
  void stored() {
    for (std::size_t rank = 0; rank < spins_until_.size(); ++rank) {
      if (spins_until_[rank] == nullptr || !is_ready(*spins_until_[rank])) continue;
      spins_until_[rank] = nullptr;
      rl::ctx().unpark_thread(static_cast<rl::thread_id_t>(rank), false,
                              rl::debug_info("spin", "", 0));
    }
  }

  /// Whether loads are of spin_until().
  bool peeks() const { return peeks_; }

  /// Runs a rank until its end, or its death.
  template <class Body>
  void run(int rank, const Body& body) {
    if (_setjmp(ends_[static_cast<std::size_t>(rank)]) == 0) body();
  }

  /// Called before each access: the victim may die here.
  void may_die() {
    if (settings.victim < 0 || rl::ctx().invariant_executing) return;
    const auto rank = rl::thread_index();
    if (static_cast<int>(rank) != settings.victim || dead_[rank]) return;
    if (rl::ctx().rand(2, rl::sched_type_user) == 0) return;
    ended_[rank].store(1, rl::mo_release, rl::debug_info("process ends", "", 0));
    dead_[rank] = true;
    ++deaths_;
    wake(nullptr);
    stored();
    _longjmp(ends_[rank], 1);
  }

  /// Whether the process has ended, as by a pidfd.
  bool has_ended(int rank) {
    return ended_[static_cast<std::size_t>(rank)].fetch_add(
               0, rl::mo_acq_rel, rl::debug_info("poll pidfd", "", 0)) != 0;
  }

  bool is_dead(int rank) const { return dead_[static_cast<std::size_t>(rank)]; }

 private:
  static constexpr unsigned naps_after_a_death = 3;
  static inline Kernel* current_ = nullptr;
  std::array<const void*, most_ranks> sleeps_on_{};
  std::array<unsigned, most_ranks> naps_{};  ///< sleeps that ended by their longest time
  unsigned deaths_ = 0;
  std::array<const std::function<bool()>*, most_ranks> spins_until_{};
  bool peeks_ = false;
  std::array<bool, most_ranks> dead_{};
  std::array<rl::atomic<int>, most_ranks> ended_{0, 0, 0, 0};
  std::array<jmp_buf, most_ranks> ends_{};
};

/// The atomics of Relacy, which keep old values that a load may still return.
struct RelacyAtomics {
  template <class T>
  class Atomic {
   public:
    Atomic() : value_(Raw{}) {}

    T load(Order order) const {
      if (Kernel::get().peeks()) return latest();
      // No other rank writes here, so other ranks cannot tell when this load happens.
      if (has_one_writer(order.access) && writer_ == static_cast<int>(rl::thread_index())) {
        read_by_writer_ = true;
        return latest();
      }
      Kernel::get().may_die();
      return static_cast<T>(value_.load(relacy_order(order.order), place_of(order)));
    }
    void store(T value, Order order) {
      Kernel::get().may_die();
      const auto rank = static_cast<int>(rl::thread_index());
      if (read_by_writer_ && writer_ != rank) fail_test("a counter with two writers");
      writer_ = rank;
      value_.store(static_cast<Raw>(value), relacy_order(order.order), place_of(order));
      Kernel::get().stored();
    }
    T fetch_add(T value, Order order) {
      Kernel::get().may_die();
      const T before = value_.fetch_add(value, relacy_order(order.order), place_of(order));
      Kernel::get().stored();
      return before;
    }
    T fetch_sub(T value, Order order) { return fetch_add(T{0} - value, order); }
    bool compare_exchange_strong(T& expected, T value, Order order) {
      Kernel::get().may_die();
      auto raw = static_cast<Raw>(expected);
      const bool done = value_.compare_exchange(rl::bool_t<false>(), raw, static_cast<Raw>(value),
                                                relacy_order(order.order), place_of(order));
      expected = static_cast<T>(raw);
      if (done) Kernel::get().stored();
      return done;
    }
    /// The last value that was stored.
    T latest() const { return static_cast<T>(value_.debug_value()); }

   private:
    using Raw = std::conditional_t<std::is_enum_v<T>, unsigned, T>;  // Relacy prints it

    rl::atomic<Raw> value_;
    int writer_ = -1;  ///< the rank that stored last; -1 for none
    mutable bool read_by_writer_ = false;
  };

  /// Memory without atomics: two accesses of which one is a store, and that nothing orders, are a
  /// data race.
  template <class T>
  class Plain {
   public:
    Plain() = default;
    Plain(const Plain&) = delete;
    Plain& operator=(const Plain&) = delete;
    Plain& operator=(const T& value) {
      accesses_(rl::debug_info("store", "", 0)).store(0);
      value_ = value;
      return *this;
    }
    operator T() const {
      accesses_(rl::debug_info("load", "", 0)).load();
      return value_;
    }

   private:
    rl::var<int> accesses_{0};
    T value_{};
  };

  static Order order(Access access) {
    settings.used.set(static_cast<std::size_t>(access));
    const auto& weakening = settings.weakening;
    const bool weaker = weakening && weakening->access == access;
    return {.order = weaker ? weakening->order : detail::rule_of(access).order, .access = access};
  }
  static void fence(Access access) {
    const Order order = RelacyAtomics::order(access);
    if (order.order == std::memory_order::relaxed) return;
    Kernel::get().may_die();
    rl::atomic_thread_fence(relacy_order(order.order), place_of(order));
  }
  static void wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                   std::chrono::nanoseconds /*longest*/) {
    Kernel::get().may_die();
    rl::ctx().sched();
    Kernel::get().wait(&word, word.latest() == expected);
  }
  static void wake(Atomic<std::uint32_t>& word) {
    Kernel::get().may_die();
    rl::ctx().sched();
    Kernel::get().wake(&word);
  }
};

}  // namespace lockstep::testing
