#pragma once

#include <algorithm>
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

#include "comm/announcement.h"
#include "comm/backend_communicator.h"
#include "comm/host/collective_steps.h"
#include "comm/host/host_rank_context.h"
#include "comm/host/message_steps.h"
#include "comm/host/world/block.h"
#include "comm/message_matching.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::host {

class HostCommunicator;
using HostRequest = detail::GroupRequest<HostCommunicator>;
using Progress = BasicProgress<Block::ring>;

/// The counts of one member of an all_to_all whose counts differ between ranks. The table is at the
/// beginning of the member's eager slot. It has where each part of the member's input begins, and
/// how many elements the member expects from each other.
class CountTable {
 public:
  CountTable(std::byte* slot, int members)
      : begins_(reinterpret_cast<std::uint64_t*>(slot)), expected_(begins_ + members + 2) {}

  static std::size_t bytes(int members) {
    return (2 * static_cast<std::size_t>(members) + 2) * sizeof(std::uint64_t);
  }

  void write(const Operation& operation) const {
    const auto sent = operation.input_counts();
    const auto expected = operation.output_counts();
    std::uint64_t begin = 0;
    for (std::size_t member = 0; member < sent.size(); ++member) {
      begins_[member] = begin;
      begin += sent[member];
      expected_[member] = expected[member];
    }
    begins_[sent.size()] = begin;
    begins_[sent.size() + 1] = std::ranges::max(sent);
  }

  /// Elements of the member's input before its part for another member.
  std::size_t begin(int member) const { return begins_[member]; }
  std::uint64_t sent(int member) const { return begins_[member + 1] - begins_[member]; }
  std::uint64_t expected(int member) const { return expected_[member]; }
  /// Elements of the longest part of the member's input.
  std::size_t longest() const { return expected_[-1]; }

 private:
  std::uint64_t* begins_;
  std::uint64_t* expected_;
};

/// A collective on this rank. Note [How a host collective runs] is in host_collective_request.cpp.
class CollectiveRequest final : public HostRequest {
 public:
  CollectiveRequest(HostCommunicator& group, Operation&& operation);

  /// Announces the collective to the members, if the ring has a free entry. True if announced.
  bool announce();
  bool announced() const { return steps_.announced(); }
  /// Whether the next collective may begin.
  bool next_may_begin() const { return complete() || steps_.next_may_begin(); }

  void advance() override;
  /// Wakes the other members.
  void wake();
  std::vector<int> missing() const override;

 private:
  friend class CollectiveSteps<Block>;  // calls the functions up to copy_out()
  void write_announcement(AnnouncementEntry& entry);
  bool compare_announcements();
  CollectivePlan plan();
  void copy_in(std::uint64_t step);
  void work(std::uint64_t step);
  void copy_out(std::uint64_t step);

  /// Populates the first bytes of this rank's slot or chunk, of which `populated` already are.
  /// Throws: the world's failure, as which this rank records a shortage of memory.
  void populate(std::byte* part, std::size_t bytes, std::size_t& populated);

  const Operation& counted() const;
  CountTable counts_of(int member) const;

  /// Whether each member reduces its own segment of the buffer.
  bool reduces_by_segments() const {
    return operation().collective == Collective::all_reduce ||
           operation().collective == Collective::reduce;
  }
  /// Whether the member's buffer gets the result of the reduction.
  bool has_result(int member) const {
    return operation().collective != Collective::reduce || member == operation().peer;
  }
  /// Copies this rank's piece of a step without its own segment.
  void copy_others(std::byte* to, const std::byte* from, std::uint64_t step) const;
  void move(std::uint64_t step);
  void reduce(std::uint64_t step);
  /// Copies the inputs of all sources, or their parts for this rank, to this rank's output.
  void pull_all(std::uint64_t step);
  static bool reaches(std::span<const std::uint64_t> offsets);
  /// Copies this rank's input to all members' outputs.
  void push(std::uint64_t step);
  /// Copies this rank's segment of the root's buffer to all members.
  void write_share_of_root(std::uint64_t step);

  /// The address of this step's piece of a source's part.
  std::byte* piece(int source, int part, std::uint64_t step) const;
  detail::Range range(int source, int part, std::uint64_t step) const;
  detail::Range my_segment(detail::Range piece) const;

  detail::Shape shape_;
  CollectiveSteps<Block> steps_;
  /// Bytes before the input in the eager slot: those of the CountTable, if there is one.
  std::size_t eager_begin_;
  std::vector<std::uint64_t> offsets_;  ///< of each member's input in the arena, or no_offset
  std::vector<std::uint64_t> outputs_;  ///< the same for the outputs
  std::size_t piece_elements_ = 0;      ///< elements of one part in one step
};

/// A send of this rank. Each ordered pair of members has a mailbox, which one message at a time
/// uses. The sender writes the offset of its input in the arena, or of a copy of the input.
class SendRequest final : public HostRequest {
 public:
  /// copy: of the input, in the arena; null if the input is in the arena.
  SendRequest(HostCommunicator& group, Operation&& operation, std::shared_ptr<std::byte> copy);

  /// Publishes that this rank has begun the operation, for the detection of deadlocks.
  void count_as_begun() { steps_.begin(); }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  SendSteps<StdAtomics> steps_;
  std::shared_ptr<std::byte> copy_;
};

/// A receive of this rank, which the group completes when it takes the message.
class RecvRequest final : public detail::ReceiveRequest<HostCommunicator> {
 public:
  using ReceiveRequest::ReceiveRequest;

  /// Copies a message from this member. Returns false if its terms differ from those of the
  /// receive: the world has failed.
  bool copy(int source, const detail::MessageTerms& terms, const std::byte* data);
};

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
  auto& matching() { return receives_; }
  /// Whether a member has left the world without an error.
  bool left_well(int member) const {
    return context_->world().left_well(members_[static_cast<std::size_t>(member)]);
  }
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
