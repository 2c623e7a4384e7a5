#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host/arena.h"
#include "comm/host/deadlock.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world.h"
#include "comm/rank_context.h"

namespace lockstep::inline v0_2::host {

/// One rank's state in the world of a host: its memory, and its watch over the other ranks. There
/// is no progress thread: a rank does its share only in its own calls.
class HostRankContext final : public detail::RankContext,
                              public std::enable_shared_from_this<HostRankContext> {
 public:
  HostRankContext(std::shared_ptr<World> world, int rank, const Options& options);
  /// Says that this rank has left, in the process that joined.
  ~HostRankContext();

  int named(int rank) const override {
    return options_.names.empty() ? rank : options_.names[static_cast<std::size_t>(rank)];
  }
  /// The rank of this world that named() calls so; -1 if there is none.
  int local_rank(int name) const {
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (named(rank) == name) return rank;
    }
    return -1;
  }
  World& world() const { return *world_; }
  Arena& arena() const { return world_->arena(); }

  void check(const detail::BackendRequest& operation) override;
  /// To be called for every operation: ends the world once its launcher has ended, for ranks that
  /// never wait for long.
  void look_at_launcher() {
    constexpr unsigned calls_between_looks = 256;
    if (options_.launcher > 0 && ++calls_ % calls_between_looks == 0) launcher_lives();
  }
  bool failed() const override {
    return arena().header().failed.load(std::memory_order_acquire) != 0;
  }

  /// Wakes those of these world ranks that sleep, after something was published for them.
  void wake(std::span<const int> ranks) const;

  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  /// Zeroed memory for the block of a group of so many members, to be given back by retire().
  std::uint64_t take_block(int members);
  /// Takes the block back once all its members are through with it.
  void retire(const Block& block);

 private:
  bool advance() override {
    for (auto* group : groups()) group->poll();
    return false;
  }
  void record(detail::FailureKind kind, const control::Failure& failure) noexcept override;
  control::Failure failure() override;
  std::string awaited(std::span<const int> ranks) const override;
  bool sleep_unless(const std::function<bool()>& over, std::chrono::nanoseconds longest) override;
  void check_deadlock(const detail::BackendRequest& operation) override;
  void end_long_wait() noexcept override;

  void sweep();
  /// Ends the world if its launcher has ended.
  bool launcher_lives();
  /// Whether another rank is about to end by the error that failed the world. It has recorded the
  /// error when it ends, and a launcher sees the cause before its effects if it ends first.
  bool is_ending(const Failure& failure) const;

  std::shared_ptr<World> world_;
  Options options_;
  Heap heap_;
  std::mutex heap_mutex_;  ///< tensors in this memory may be destroyed on any thread
  std::vector<Block> retired_;
  unsigned calls_ = 0;  ///< of look_at_launcher()
  PeerWatch peers_;
  std::optional<PublishedWait> published_;       ///< of the present wait
  std::optional<Deadlock> deadlock_;             ///< that it found when it looked last
  int exceptions_ = std::uncaught_exceptions();  ///< in flight when the rank joined
};

}  // namespace lockstep::host
