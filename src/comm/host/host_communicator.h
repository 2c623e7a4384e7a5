#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/host/block.h"
#include "comm/host/deadlock.h"
#include "comm/host/host_collective_request.h"
#include "comm/host/host_message_request.h"
#include "comm/host/host_rank_context.h"

namespace lockstep::inline v0_2::host {

/// One rank's view of one group of a host world.
class HostCommunicator final : public detail::BackendCommunicator {
 public:
  /// members are world ranks in the order of the group; one of them may own the block's memory.
  /// Each group of a rank has a number of its own; 0 is the world.
  HostCommunicator(std::shared_ptr<HostRankContext> context, std::vector<int> members, int rank,
                   Block block, bool owns_block, int number);
  ~HostCommunicator() override;

  std::string_view backend() const override { return "host"; }
  int world_rank(int rank) const override { return names_[static_cast<std::size_t>(rank)]; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::optional<std::uint64_t> place_of(const void* memory) const override;
  std::byte* at_place(std::uint64_t place) const override;
  std::shared_ptr<Communicator> split(int color, int key) override;

  void poll() override;
  void drop(std::vector<std::shared_ptr<void>>& pending) override;

  /// Meets all members in the collective that numbers 0. Called once, by who made this
  /// communicator.
  void join();

  // For pending operations.
  HostRankContext& context() const override { return *context_; }
  const Block& block() const { return block_; }
  std::span<const int> members() const { return members_; }
  /// The record that other ranks read while this rank waits for the operation.
  Waited waited(const Operation& operation) const;
  /// The members' numbers in messages.
  std::span<const int> names() const { return names_; }
  Progress& progress() { return progress_; }
  void wake(int member) const {
    context_->wake(std::span(&members_[static_cast<std::size_t>(member)], 1));
  }
  void wake() const { context_->wake(members_); }

 private:
  Work begin(Operation&& operation) override;
  Work begin_message(Operation&& operation);
  /// Begins a numbered collective.
  Work start(Operation&& operation);

  std::shared_ptr<HostRankContext> context_;
  std::vector<int> members_;
  std::vector<int> names_;
  Block block_;
  bool owns_block_;
  int number_;
  Progress progress_;
  std::deque<std::shared_ptr<CollectiveRequest>>
      collectives_;  ///< in order; the first may be working
  std::vector<std::shared_ptr<MessageRequest>> messages_;
};

}  // namespace lockstep::host
