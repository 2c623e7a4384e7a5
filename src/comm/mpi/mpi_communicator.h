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
#include "comm/messages/transport.h"
#include "comm/mpi/mpi_rank_context.h"
#include "comm/mpi/mpi_request.h"

namespace lockstep::inline v0_2::mpi {

/// One rank's view of one group of the processes of its MPI.
class MpiCommunicator final : public detail::BackendCommunicator {
 public:
  /// members are world ranks in the order of the group; number tells its messages from those of
  /// other groups with the same members.
  MpiCommunicator(std::shared_ptr<MpiRankContext> context, std::vector<int> members, int rank,
                  int number);
  ~MpiCommunicator() override;

  std::string_view backend() const override { return "mpi"; }
  int world_rank(int rank) const override { return group_.world_rank(rank); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key) override;

  void poll() override;
  std::size_t pending() const override;
  void release(std::vector<std::shared_ptr<void>>& complete) override;

  /// Meets all members in the collective that numbers 0. Called once, by who made this
  /// communicator.
  void join();
  /// Learns which host each rank is on, in another collective that numbers 0; host is what this
  /// rank's is known by. Called once for the world. Throws: InvalidArgument on every rank when they
  /// were told different algorithms.
  void meet_hosts(const std::string& host);
  /// Every rank's bytes = rank 0's, in a collective that numbers 0.
  void share(std::span<std::byte> bytes);

  // For pending operations.
  MpiRankContext& context() const override { return *context_; }

  messages::GroupTransport transport() const { return {group_, context_->transport()}; }
  /// Messages of a member that its receivers have accepted.
  std::uint64_t& received(int member) { return received_[static_cast<std::size_t>(member)]; }
  /// World ranks that the first pending collective waits for.
  std::vector<int> holding_up() const;

 private:
  Work begin(Operation&& operation) override;
  void place(std::vector<int> hosts);
  Work begin_message(Operation&& operation);
  /// Begins a numbered collective.
  Work start(Operation&& operation);
  /// A collective of the library's own, from begin to end.
  void unnumbered(Operation&& operation);

  std::shared_ptr<MpiRankContext> context_;
  messages::MessageGroup group_;
  std::vector<std::uint64_t> received_;
  std::deque<std::shared_ptr<CollectiveRequest>>
      collectives_;  ///< in order; those in front may be moving bytes
  std::deque<std::shared_ptr<MessageRequest>> messages_;
};

/// Lets the ranks of a world of several hosts watch one another from here on, over connections of
/// their own to rank 0. Every rank calls it, once. Throws: on every rank, CommError and
/// TimeoutError of what kept them from meeting.
void connect_hosts(MpiCommunicator& world);

}  // namespace lockstep::mpi
