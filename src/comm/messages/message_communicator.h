#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/messages/message_protocol.h"
#include "comm/messages/message_rank_context.h"
#include "comm/messages/network.h"

namespace lockstep::inline v0_2::messages {

class CollectiveRequest;

/// One rank's communicator of one group of ranks that exchange messages over a Network.
class MessageCommunicator final : public detail::BackendCommunicator {
 public:
  /// members are world ranks in the order of the group. number distinguishes its messages from
  /// those of other groups.
  MessageCommunicator(std::shared_ptr<MessageRankContext> context, std::vector<int> members,
                      int rank, int number);
  ~MessageCommunicator() override;

  std::string_view backend() const override { return context_->network().name(); }
  int world_rank(int rank) const override { return group_.world_rank(rank); }
  int group_number() const override { return group_.shown_number(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key) override;
  std::shared_ptr<Communicator> new_group(std::span<const int> members) override;
  bool matches_by_tag() const override { return true; }

  /// The highest number of the groups that this rank is or was a member of.
  int last_group() const;
  /// The group of these ranks of this group, in this order. Only its members call it; null if there
  /// are none. It sends no message, and waits for none of them. Its failure ends the world.
  /// number: the same on all members; higher than the last_group() of each, or agreement_group.
  /// Throws: CommError if the network has too few tags for this number.
  std::shared_ptr<MessageCommunicator> part(const std::vector<int>& ranks, int number);

  void poll() override;
  std::size_t pending() const override;
  void release(std::vector<std::shared_ptr<void>>& complete) override;
  void drop(std::vector<std::shared_ptr<void>>& pending) override;

  /// The communicator of all ranks of the network. Every rank calls it once; returns when all have.
  /// Throws: as expect_alike(), on every rank.
  static std::shared_ptr<MessageCommunicator> world(std::shared_ptr<MessageRankContext> context);
  /// Every rank's bytes = rank 0's bytes, by a broadcast with sequence number 0.
  void broadcast_from_rank_0(std::span<std::byte> bytes);

  // For pending operations.
  MessageRankContext& context() const override { return *context_; }

  const MessageGroup& message_group() const { return group_; }
  auto& matching() { return receives_.matching(); }
  /// Whether a member has left the world without an error.
  bool left_well(int member) const { return context_->left_well(world_rank(member)); }
  /// World ranks that the first pending collective waits for, and therefore all later ones.
  std::vector<int> first_missing() const;

 private:
  /// Exchanges join records by a collective with sequence number 0, and sets the host index of each
  /// rank.
  void exchange_join_records();
  Work begin(Operation&& operation) override;
  void set_placement(std::vector<int> hosts);
  /// Begins an operation that has its number, and adds it to those of its kind.
  template <class Request>
  Work begin_request(auto& requests, Operation&& operation);
  /// Runs a collective with sequence number 0 to its end.
  void run_unnumbered(Operation&& operation);

  std::shared_ptr<MessageRankContext> context_;
  MessageGroup group_;
  std::deque<std::shared_ptr<CollectiveRequest>>
      collectives_;  ///< in order; the transfers of the first ones may be in progress
  std::vector<std::shared_ptr<MessageRequest>> messages_;
  ReceiveProtocol receives_;
};

/// Ends the making of a world: begins to record its operations, and starts its progress thread.
/// Throws: CommError if the process cannot start another thread.
void begin(Communicator& world, bool records, bool by_thread);

}  // namespace lockstep::messages
