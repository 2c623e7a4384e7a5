#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/host/world/world_layout.h"

namespace lockstep::inline v0_2::host {

/// State that all collectives of one group share on this rank. Collectives advance strictly in
/// order.
template <std::uint64_t ring>
struct BasicProgress {
  explicit BasicProgress(int members)
      : staged(static_cast<std::size_t>(members)), finished(static_cast<std::size_t>(members)) {}

  std::uint64_t next_step =
      0;  ///< number of steps of all planned collectives; the same on all members
  std::uint64_t planned = 0;  ///< number of planned collectives
  /// For each entry of the ring: the number of finished steps at which its last collective is
  /// complete.
  std::array<std::uint64_t, ring> finished_at{};
  /// The last values that this rank has read of each member's counters. The counters may have
  /// increased since.
  std::vector<std::uint64_t> staged;
  std::vector<std::uint64_t> finished;
};

enum class Path {
  eager,      ///< eager: inputs are beside the announcements; no further synchronisation
  zero_copy,  ///< zero-copy: all inputs are in the arena; one step
  staged      ///< some input is outside the arena and is copied through chunks
};

/// Advances the collectives of a group that a member has issued, in order, and removes those that
/// are complete. Pointers to objects with announce(), announced(), advance(), next_may_begin() and
/// complete(), and wake(), which wakes the other members.
template <class Collectives>
void advance_in_order(Collectives& collectives) {
  for (;;) {
    // Announce all collectives that fit into the ring, so that members who are ahead can begin
    // them.
    bool ring_full = false;
    for (const auto& one : collectives) {
      ring_full = !one->announced() && !one->announce();
      if (ring_full) break;
    }
    bool completed = false;
    for (const auto& one : collectives) {
      const bool watched = ring_full && !one->complete();
      one->advance();
      completed = completed || (watched && one->complete());
      if (!one->next_may_begin()) break;
    }
    while (!collectives.empty() && collectives.front()->complete()) collectives.pop_front();
    if (!completed) return;
    // An eager collective completes without a wake-up. If the rings of all members are full, all
    // would sleep although each has finished what the others wait for.
    collectives.back()->wake();
  }
}

/// How a collective runs, which every member derives from the announcements.
struct CollectivePlan {
  Path path;
  std::uint64_t steps;
};

/// The steps of one collective on one member: which data the member may read and write, and when.
/// Note [How a host collective runs] is in host_collective_request.cpp. The owner moves the data:
///
///     void write_announcement(AnnouncementEntry&)   also the eager slot
///     bool compare_announcements()                  false: the world has failed
///     CollectivePlan plan()
///     void copy_in(step), work(step), copy_out(step)
///     void wake()                                   wakes the other members
template <class Block>
class CollectiveSteps {
 public:
  using Atomics = typename Block::Atomics;
  using Progress = BasicProgress<Block::ring>;

  CollectiveSteps(const Block& block, int member, std::uint64_t sequence)
      : block_(block), member_(member), sequence_(sequence) {}

  /// Announces the collective to the members, if the ring has a free entry. True if announced.
  template <class Owner>
  bool announce(Progress& progress, Owner& owner) {
    if (sequence_ >= Block::ring) {
      // The ring's entry belongs to an earlier collective until all members have finished that one.
      if (progress.planned + Block::ring <= sequence_) return false;
      const auto finished_at = progress.finished_at[sequence_ % Block::ring];
      if (!all_finished(progress, finished_at)) return false;
    }
    auto& entry = block_.entry(member_, sequence_);
    owner.write_announcement(entry);
    entry.number.store(sequence_ + 1, Atomics::order(Access::announcement_publish));
    owner.wake();
    stage_ = Stage::announced;
    return true;
  }
  bool announced() const { return stage_ != Stage::queued; }

  /// Advances as far as possible. Returns whether the collective is complete.
  template <class Owner>
  bool advance(Progress& progress, Owner& owner) {
    if (stage_ == Stage::announced) {
      if (!all_announced() || !owner.compare_announcements()) return false;
      plan(progress, owner.plan());
      stage_ = Stage::stepping;
      stage_input(0, owner);
    }
    if (stage_ == Stage::stepping && !step(progress, owner)) return false;
    if (stage_ != Stage::finishing) return false;
    const bool over =
        plan_.path == Path::eager || all_finished(progress, first_step_ + plan_.steps);
    if (over) owner.copy_out(plan_.steps - 1);
    return over;
  }

  /// Whether the next collective may begin although this one is not complete: this rank's share is
  /// finished, and its staging chunks are free.
  bool next_may_begin() const { return stage_ == Stage::finishing && plan_.path != Path::staged; }

  /// Whether the collective waits for this member.
  bool is_late(const Progress& progress, int member) const {
    const auto order = Atomics::order(Access::missing_read);
    switch (stage_) {
      case Stage::queued:
        // It waits for earlier collectives: the members that the first of these waits for.
        return block_.finished(member).value.load(order) < progress.next_step ||
               block_.entry(member, progress.planned).number.load(order) <= progress.planned;
      case Stage::announced:
        return block_.entry(member, sequence_).number.load(order) != sequence_ + 1;
      case Stage::stepping:
      case Stage::finishing:
        break;
    }
    const std::uint64_t reached = first_step_ + step_ + 1;
    const bool staging = stage_ == Stage::stepping && !step_finished_;
    const auto& counter = staging ? block_.staged(member) : block_.finished(member);
    return counter.value.load(order) < reached;
  }

  Path path() const { return plan_.path; }

 private:
  enum class Stage { queued, announced, stepping, finishing };

  bool all_announced() const {
    for (int member = 0; member < block_.members(); ++member) {
      const auto& number = block_.entry(member, sequence_).number;
      if (number.load(Atomics::order(Access::announcement_read)) != sequence_ + 1) return false;
    }
    return true;
  }

  bool all_staged(Progress& progress, std::uint64_t value) const {
    for (int member = 0; member < block_.members(); ++member) {
      auto& known = progress.staged[static_cast<std::size_t>(member)];
      if (known >= value) continue;
      known = block_.staged(member).value.load(Atomics::order(Access::staged_read));
      if (known < value) return false;
    }
    return true;
  }

  bool all_finished(Progress& progress, std::uint64_t value) const {
    for (int member = 0; member < block_.members(); ++member) {
      auto& known = progress.finished[static_cast<std::size_t>(member)];
      if (known >= value) continue;
      known = block_.finished(member).value.load(Atomics::order(Access::finished_read));
      if (known < value) return false;
    }
    return true;
  }

  void plan(Progress& progress, const CollectivePlan& plan) {
    plan_ = plan;
    first_step_ = progress.next_step;
    progress.next_step += plan.steps;
    progress.finished_at[sequence_ % Block::ring] = progress.next_step;
    ++progress.planned;
  }

  template <class Owner>
  void stage_input(std::uint64_t step, Owner& owner) {
    if (plan_.path != Path::staged || step == plan_.steps) return;
    owner.copy_in(step);
    block_.staged(member_).value.store(first_step_ + step + 1,
                                       Atomics::order(Access::staged_publish));
    owner.wake();
  }

  template <class Owner>
  bool step(Progress& progress, Owner& owner) {
    for (;;) {
      const std::uint64_t reached = first_step_ + step_ + 1;
      if (!step_finished_) {
        if (plan_.path == Path::staged && !all_staged(progress, reached)) return false;
        owner.work(step_);
        block_.finished(member_).value.store(reached, Atomics::order(Access::finished_publish));
        // On the eager path only a member whose ring is full waits for this; the next announcement
        // wakes it.
        if (plan_.path != Path::eager) owner.wake();
        step_finished_ = true;
        // The next chunk is free: all members have finished the previous step.
        stage_input(step_ + 1, owner);
      }
      if (step_ + 1 == plan_.steps) break;
      if (!all_finished(progress, reached)) return false;
      owner.copy_out(step_);
      ++step_;
      step_finished_ = false;
    }
    stage_ = Stage::finishing;
    return true;
  }

  const Block& block_;
  int member_;
  std::uint64_t sequence_;
  Stage stage_ = Stage::queued;
  CollectivePlan plan_{.path = Path::eager, .steps = 1};
  std::uint64_t first_step_ = 0;
  std::uint64_t step_ = 0;
  bool step_finished_ = false;
};

}  // namespace lockstep::host
