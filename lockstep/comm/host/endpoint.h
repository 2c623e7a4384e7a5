#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/host/heap.h"
#include "lockstep/comm/host/host.h"
#include "lockstep/comm/host/in_flight.h"
#include "lockstep/comm/host/process_watch.h"
#include "lockstep/comm/host/world.h"
#include "lockstep/comm/waiting.h"

namespace lockstep::host {

/// Something of this rank that advances when polled: a group's operations.
class Pollable {
 public:
  /// Does what can be done without blocking.
  virtual void poll() = 0;
  /// Forgets what is in flight, after the world has failed.
  virtual void drop() noexcept = 0;

 protected:
  ~Pollable() = default;
};

/// One rank's place in the world, shared by all its groups: how it waits, learns of failures, and
/// takes memory.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  Endpoint(std::shared_ptr<World> world, int rank, const Options& options);
  /// Says that this rank has left.
  ~Endpoint();

  int rank() const { return rank_; }
  /// What a rank of this world is called in messages.
  int named(int rank) const {
    return options_.names.empty() ? rank : options_.names[static_cast<std::size_t>(rank)];
  }
  World& world() const { return *world_; }
  Arena& arena() const { return world_->arena(); }

  void add(Pollable& group) { groups_.push_back(&group); }
  void remove(Pollable& group) { std::erase(groups_, &group); }
  /// Whoever waits does this rank's share, and nobody else.
  static constexpr bool has_thread() { return false; }

  /// Advances all groups of this rank.
  void poll() {
    for (auto* group : groups_) group->poll();
  }

  /// Polls until the operation is complete, spinning, yielding, then sleeping.
  /// Throws: what ended the world.
  void wait(const InFlight& operation);
  /// Ends the world when a rank that the operation waits for has gone. Throws that.
  void check(const InFlight& operation);

  bool failed() const { return arena().header().failed.load(std::memory_order_acquire) != 0; }
  /// Throws what ended the world, as it was met here.
  [[noreturn]] void throw_failure(std::string_view where);

  /// Watches the processes of the other ranks from here on, as soon as each is known.
  void watch();

  /// Wakes those of these world ranks that sleep, after something was published for them.
  void ring(std::span<const int> ranks) const;

  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  /// Zeroed memory for the block of a group of so many members, to be given back by retire().
  std::uint64_t take_block(int members);
  /// Takes the block back once all its members are through with it.
  void retire(const Block& block);

  /// Entered by every call that touches this rank's groups.
  class Use : detail::OneThread {
   public:
    explicit Use(Endpoint& endpoint) : OneThread(endpoint.used_, "host", endpoint.rank()) {}
  };

 private:
  void sweep();
  /// What is known of the rank, its process included if it is watched.
  RankStatus status_of(int rank);
  void check_time(const InFlight& operation, std::chrono::steady_clock::duration waited,
                  std::chrono::milliseconds limit);

  std::shared_ptr<World> world_;
  int rank_;
  Options options_;
  int spins_;   ///< polls before a waiting rank yields its core
  int yields_;  ///< and then before it sleeps
  Heap heap_;
  std::mutex heap_mutex_;  ///< tensors in this memory may be destroyed on any thread
  std::atomic<bool> used_{false};
  std::vector<Pollable*> groups_;
  std::vector<Block> retired_;
  std::vector<std::optional<ProcessWatch>> watched_;  ///< each rank's process, once it is known
  std::uint64_t pid_space_ = 0;
};

}  // namespace lockstep::host
