#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/flight/deadlock.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/arena.h"
#include "comm/host/world/wait_record.h"
#include "comm/host/world/world.h"
#include "comm/host/world/world_layout.h"
#include "comm/rank_context.h"
#include "core/system/crash_handler.h"

namespace lockstep::inline v0_2::host {

/// The published waits of the ranks of the arena, for detail::find_deadlock(). Any rank may call
/// it. world_ranks: of the ranks of the arena; empty: the same numbers.
detail::WaitOf live_waits(const Arena& arena, std::vector<int> world_ranks = {});

/// One rank's state in a host world: its memory and the checks of other ranks' processes. There is
/// no progress thread: a rank advances operations only in its own calls.
class HostRankContext final : public detail::RankContext,
                              private detail::CrashListener,
                              public std::enable_shared_from_this<HostRankContext> {
 public:
  HostRankContext(std::shared_ptr<World> world, int rank, const Options& options);
  /// Records that this rank has left the world, except in a forked child process.
  ~HostRankContext();

  int world_rank(int rank) const override {
    return options_.world_ranks.empty() ? rank
                                        : options_.world_ranks[static_cast<std::size_t>(rank)];
  }
  /// The rank in this host world with a world rank; -1 if there is none.
  int local_rank(int global_rank) const {
    const auto& ranks = options_.world_ranks;
    if (ranks.empty()) return global_rank < world_->size() ? global_rank : -1;
    const auto found = std::ranges::find(ranks, global_rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  World& world() const { return *world_; }
  const Options& options() const { return options_; }
  /// The name of the next world of these ranks of this world, the same on all of them and different
  /// from that of any other on this host.
  std::string name_of_new_world(const std::vector<int>& ranks);
  const Arena& arena() const { return *world_; }

  void check(const detail::BackendRequest& operation) override;
  /// Ends the world if one of the ranks has ended or has left by an error. label and where: of what
  /// this rank waits for.
  /// Throws: CommError then.
  void check_processes(std::span<const int> ranks, std::string_view label, std::string_view where);
  /// Called for every operation. Every 256th call ends the world if the launcher has ended, because
  /// a rank that never waits long makes no other check.
  void check_launcher_regularly() {
    constexpr unsigned calls_between_checks = 256;
    if (options_.launcher > 0 && ++calls_ % calls_between_checks == 0) launcher_runs();
  }
  bool failed() const override { return arena().header().failed.begun(Access::failure_begun); }

  /// Ends the published wait before this rank takes a message: other ranks compare the wait with
  /// what the rank has taken. If the rank still waits, it publishes the wait again.
  void end_published_wait() {
    if (std::exchange(published_, false)) end_wait(arena().rank(rank()).wait);
  }

  /// Wakes those of these ranks that sleep, after data were published for them.
  void wake(std::span<const int> ranks) const;

  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  /// Allocates the zeroed block of a group with this many members. Slots and chunks are not
  /// populated. retire() releases it.
  std::uint64_t allocate_block(int members);
  /// Releases the block when all its members have left the group.
  void retire(const Block& block);

 private:
  /// Ends the world, so that the other ranks raise the crash at once.
  void on_crash(const detail::Crash& crash) noexcept override;
  /// Ends the world because the rank has left it or ended.
  void fail_by_end(int rank, std::string_view label, const Source& source);
  bool advance() override {
    for (auto* group : groups()) group->poll();
    return false;
  }
  void record(const Failure& failure) noexcept override;
  Failure failure() override;
  std::string missing_text(std::span<const int> ranks) const override;
  bool sleep_unless(detail::Condition& over, std::chrono::nanoseconds longest) override;
  void interrupt() noexcept override;
  detail::WaitOf publish_wait(const detail::BackendRequest& operation) override;
  void end_long_wait() noexcept override { end_published_wait(); }

  void release_retired_blocks();
  /// Ends the world if its launcher has ended. Returns whether the launcher runs.
  bool launcher_runs();
  /// Whether another rank is about to end by the error that failed the world. If so, this rank
  /// waits for that end: the other rank then has recorded its error, and the launcher sees the
  /// cause before its effects.
  bool is_ending(const Failure& failure) const;

  std::shared_ptr<World> world_;
  Options options_;
  Heap heap_;
  std::mutex heap_mutex_;  ///< any thread may destroy tensors in this memory
  std::vector<Block> retired_;
  unsigned calls_ = 0;  ///< calls of check_launcher_regularly()
  PeerWatch peers_;
  LauncherWatch launcher_;
  bool published_ = false;                       ///< this rank publishes its current wait
  std::map<std::vector<int>, int> new_worlds_;   ///< how many were named, for each list of ranks
  int exceptions_ = std::uncaught_exceptions();  ///< uncaught exceptions when the rank joined
};

}  // namespace lockstep::host
