#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/host/host_rank_context.h"
#include "comm/host/host_request.h"
#include "comm/host/world/block.h"
#include "comm/message_matching.h"

namespace lockstep::inline v0_2::host {

/// One rank's communicator of one group of a host world.
class HostCommunicator final : public detail::BackendCommunicator {
 public:
  /// members are ranks of the host world in the order of the group. number identifies the group
  /// among the groups of a rank; 0 is the world. The first member of another group owns the memory
  /// of the block.
  HostCommunicator(std::shared_ptr<HostRankContext> context, std::vector<int> members, Block block,
                   int number);
  ~HostCommunicator() override;

  std::string_view backend() const override { return "host"; }
  int world_rank(int rank) const override { return world_ranks_[static_cast<std::size_t>(rank)]; }
  int group_number() const override { return number_; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::optional<std::uint64_t> place_of(const void* memory) const override;
  std::byte* at_place(std::uint64_t place) const override;
  std::shared_ptr<Communicator> split(int color, int key) override;

  std::shared_ptr<Communicator> new_group(std::span<const int> members) override;

  bool matches_by_tag() const override { return true; }
  void check_processes(std::string_view label) override;

  void poll() override;
  void drop(std::vector<std::shared_ptr<void>>& pending) override;

  /// Synchronises all members by a barrier with sequence number 0. Called once after construction.
  void join();

  // For pending operations.
  HostRankContext& context() const override { return *context_; }
  const Block& block() const { return block_; }
  std::span<const int> members() const { return members_; }
  /// Describes the wait for the operation, for this rank to publish.
  Waited waited(const Operation& operation) const;
  /// The members' world ranks, for error texts.
  std::span<const int> world_ranks() const { return world_ranks_; }
  Progress& progress() { return progress_; }
  /// The bytes of an eager slot and of a chunk of this member that it has populated.
  std::size_t& populated_slot(std::uint64_t sequence) { return slots_[sequence % Block::ring]; }
  std::size_t& populated_chunk(std::uint64_t step) { return chunks_[step % Block::chunks]; }
  /// The receives of this rank, and the messages that came before their receives. Note [How
  /// receives are matched] is in message_matching.h.
  auto& receives() { return receives_; }
  /// Publishes the number of open receives for each member, for the detection of deadlocks.
  void publish_receives() const;
  void wake(int member) const {
    context_->wake(std::span(&members_[static_cast<std::size_t>(member)], 1));
  }
  void wake() const { context_->wake(members_); }

 private:
  Work begin(Operation&& operation) override;
  Work begin_send(Operation&& operation);
  Work begin_recv(Operation&& operation);
  /// Begins a collective that has its sequence number.
  Work start(Operation&& operation);
  /// Takes messages from the mailboxes of members from which this rank has an open receive. In
  /// host_message_request.cpp, as what follows.
  void take_messages();
  /// Takes the message of the mailbox. Returns whether there was one.
  bool take_from(int source);
  /// Keeps a copy of a message. Returns false if memory is short: the world has failed.
  bool keep(int source, const detail::MessageTerms& terms, const std::byte* data);
  Mailbox& mailbox_from(int source) const { return block_.mailbox(source, rank()); }

  std::shared_ptr<HostRankContext> context_;
  std::vector<int> members_;
  std::vector<int> world_ranks_;
  Block block_;
  int number_;
  Progress progress_;
  std::array<std::size_t, Block::ring> slots_{};
  std::array<std::size_t, Block::chunks> chunks_{};
  std::deque<std::shared_ptr<CollectiveRequest>>
      collectives_;  ///< in order; only the first advances through its steps
  std::vector<std::shared_ptr<SendRequest>> sends_;
  detail::MessageMatching<std::shared_ptr<RecvRequest>, std::unique_ptr<detail::TakenMessage>>
      receives_;
};

}  // namespace lockstep::host
