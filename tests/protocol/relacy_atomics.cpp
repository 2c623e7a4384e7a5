#include "tests/protocol/relacy_atomics.h"

namespace lockstep::testing {

void fail_test(const char* what) {
  rl::ctx().fail_test(what, rl::test_result_user_assert_failed, rl::debug_info(what, "", 0));
}

rl::debug_info place_of(Order order) { return {detail::rule_of(order.access).name.data(), "", 0}; }

Order RelacyAtomics::order(Access access) {
  settings.used.set(static_cast<std::size_t>(access));
  const auto& weakening = settings.weakening;
  const bool weaker = weakening && weakening->access == access;
  return {.order = weaker ? weakening->order : detail::rule_of(access).order, .access = access};
}

void RelacyAtomics::fence(Access access) {
  const Order order = RelacyAtomics::order(access);
  if (order.order == std::memory_order::relaxed) return;
  Kernel::get().may_die();
  rl::atomic_thread_fence(relacy_order(order.order), place_of(order));
}

void Kernel::wait(const void* word, bool has_expected_value) {
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

void Kernel::wake(const void* word) {
  for (std::size_t rank = 0; rank < sleeps_on_.size(); ++rank) {
    if (sleeps_on_[rank] == nullptr || (word != nullptr && sleeps_on_[rank] != word)) continue;
    sleeps_on_[rank] = nullptr;
    rl::ctx().unpark_thread(static_cast<rl::thread_id_t>(rank), false,
                            rl::debug_info("futex wake", "", 0));
  }
}

bool Kernel::is_ready(const std::function<bool()>& ready) {
  peeks_ = true;
  const bool is = ready();
  peeks_ = false;
  return is;
}

void Kernel::spin_until(const std::function<bool()>& ready) {
  if (is_ready(ready)) return;
  spins_until_[rl::thread_index()] = &ready;
  rl::ctx().park_current_thread(false, false, false, rl::debug_info("spin", "", 0));
}

void Kernel::stored() {
  for (std::size_t rank = 0; rank < spins_until_.size(); ++rank) {
    if (spins_until_[rank] == nullptr || !is_ready(*spins_until_[rank])) continue;
    spins_until_[rank] = nullptr;
    rl::ctx().unpark_thread(static_cast<rl::thread_id_t>(rank), false,
                            rl::debug_info("spin", "", 0));
  }
}

void Kernel::may_die() {
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

bool Kernel::has_ended(int rank) {
  return ended_[static_cast<std::size_t>(rank)].fetch_add(0, rl::mo_acq_rel,
                                                          rl::debug_info("poll pidfd", "", 0)) != 0;
}

}  // namespace lockstep::testing
