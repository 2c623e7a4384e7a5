#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host/deadlock.h"
#include "comm/host/heap.h"
#include "comm/host/host.h"
#include "comm/host/host_request.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world.h"
#include "comm/met_failure.h"
#include "comm/waiting.h"
#include "core/deadline.h"

namespace lockstep::inline v0_2::host {

/// Something of this rank that advances when polled: a group's operations.
class Pollable {
 public:
  /// Does what can be done without blocking.
  virtual void poll() = 0;
  /// Drops the pending operations, after the world has failed.
  virtual void drop() noexcept = 0;

 protected:
  ~Pollable() = default;
};

/// One rank's place in the world, shared by all its groups: how it waits, learns of failures, and
/// takes memory.
class RankContext : public std::enable_shared_from_this<RankContext> {
 public:
  RankContext(std::shared_ptr<World> world, int rank, const Options& options);
  /// Says that this rank has left, in the process that joined.
  ~RankContext();

  int rank() const { return rank_; }
  /// The number of a rank of this world in messages.
  int named(int rank) const {
    return options_.names.empty() ? rank : options_.names[static_cast<std::size_t>(rank)];
  }
  World& world() const { return *world_; }
  Arena& arena() const { return world_->arena(); }

  /// The highest number of a group that this rank is or was in.
  int last_group() const { return last_group_; }
  void set_last_group(int number) { last_group_ = number; }

  void add(Pollable& group) { groups_.push_back(&group); }
  void remove(Pollable& group) { std::erase(groups_, &group); }
  /// There is no progress thread: a rank does its share only in its own calls.
  static constexpr bool has_thread() { return false; }

  /// Whether this is a child that the rank's process forked off. The rank is the parent's.
  bool in_child() const noexcept { return usage_.in_child(); }

  /// Advances all groups of this rank.
  void poll() {
    for (auto* group : groups_) group->poll();
  }

  /// Polls until the operation is complete, spinning, yielding, then sleeping.
  /// Throws: what ended the world.
  void wait(const HostRequest& operation);
  /// Ends the world when a rank that the operation waits for has gone. Throws that.
  void check(const HostRequest& operation);

  /// To be called for every operation: ends the world once its launcher has ended, for ranks that
  /// never wait for long.
  void look_at_launcher() {
    constexpr unsigned calls_between_looks = 256;
    if (options_.launcher > 0 && ++calls_ % calls_between_looks == 0) launcher_lives();
  }
  bool failed() const { return arena().header().failed.load(std::memory_order_acquire) != 0; }
  /// Throws what ended the world, as it was met here.
  [[noreturn]] void throw_failure(std::string_view where);
  /// The program of this rank has ended the world: its next error is a later one.
  void set_failure_met() noexcept { met_failure_.set_met(); }

  /// Wakes those of these world ranks that sleep, after something was published for them.
  void wake(std::span<const int> ranks) const;

  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  /// Zeroed memory for the block of a group of so many members, to be given back by retire().
  std::uint64_t take_block(int members);
  /// Takes the block back once all its members are through with it.
  void retire(const Block& block);

  /// Entered by every call that touches this rank's groups.
  class Use : detail::OneThread {
   public:
    explicit Use(RankContext& context) : OneThread(context.usage_, "host", context.rank()) {}
  };

 private:
  void sweep();
  void check_time(const HostRequest& operation, detail::Deadline& deadline,
                  std::chrono::milliseconds limit);
  /// Ends the world when this rank waits in a deadlock, or behind one. Throws that.
  /// Ends the world if its launcher has ended.
  bool launcher_lives();
  /// Whether another rank is about to end by the error that failed the world. It has recorded the
  /// error when it ends, and a launcher sees the cause before its effects if it ends first.
  bool is_ending(const Failure& failure) const;
  void check_deadlock(const HostRequest& operation, std::optional<Deadlock>& found);

  std::shared_ptr<World> world_;
  int rank_;
  Options options_;
  int spins_;   ///< polls before a waiting rank yields its core
  int yields_;  ///< and then before it sleeps
  Heap heap_;
  std::mutex heap_mutex_;  ///< tensors in this memory may be destroyed on any thread
  detail::Usage usage_;
  std::vector<Pollable*> groups_;
  std::vector<Block> retired_;
  int last_group_ = 0;
  unsigned calls_ = 0;  ///< of look_at_launcher()
  PeerWatch peers_;
  detail::MetFailure met_failure_;
  int exceptions_ = std::uncaught_exceptions();  ///< in flight when the rank joined
};

}  // namespace lockstep::host
