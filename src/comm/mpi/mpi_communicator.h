#pragma once

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
#include "comm/messages/receive_protocol.h"
#include "comm/messages/transport.h"
#include "comm/mpi/mpi_rank_context.h"
#include "comm/mpi/mpi_request.h"

namespace lockstep::inline v0_2::mpi {

/// One rank's communicator of one group of MPI processes.
class MpiCommunicator final : public detail::BackendCommunicator {
 public:
  /// members are world ranks in the order of the group. number distinguishes its messages from
  /// those of other groups.
  MpiCommunicator(std::shared_ptr<MpiRankContext> context, std::vector<int> members, int rank,
                  int number);
  ~MpiCommunicator() override;

  std::string_view backend() const override { return "mpi"; }
  int world_rank(int rank) const override { return group_.world_rank(rank); }
  int group_number() const override { return group_.shown_number(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key) override;
  std::shared_ptr<Communicator> new_group(std::span<const int> members) override;
  bool matches_by_tag() const override { return true; }

  /// The group of these ranks of this group, in this order. It sends no message.
  /// number: the same on all of them; higher than their RankContext::last_group(), or
  /// agreement_group.
  /// Throws: CommError if MPI has too few tags for this number.
  std::shared_ptr<MpiCommunicator> part(const std::vector<int>& ranks, int number);

  void poll() override;
  std::size_t pending() const override;
  void release(std::vector<std::shared_ptr<void>>& complete) override;

  /// Synchronises all members by a barrier with sequence number 0. Called once after construction.
  void join();
  /// Exchanges join records by a collective with sequence number 0, and sets the host index of each
  /// rank. host is this rank's host id. Called once for the world.
  /// Throws: as expect_alike(), on every rank.
  void exchange_join_records(const std::string& host);
  /// Every rank's bytes = rank 0's bytes, by a broadcast with sequence number 0.
  void broadcast_from_rank_0(std::span<std::byte> bytes);

  // For pending operations.
  MpiRankContext& context() const override { return *context_; }

  messages::GroupTransport transport() const { return {group_, context_->transport()}; }
  /// The members' world ranks.
  std::span<const int> members() const { return group_.members; }
  messages::ReceiveProtocol& receives() { return *receives_; }
  /// World ranks that the first pending collective waits for, and therefore all later ones.
  std::vector<int> first_awaited() const;

 private:
  Work begin(Operation&& operation) override;
  void set_placement(std::vector<int> hosts);
  /// Begins an operation that has its number by begin(request), and hands it to the caller.
  template <class Request, class Begin>
  Work begin_request(std::shared_ptr<Request> request, const Begin& begin);
  /// Runs a part of a protocol. A mismatch becomes the world's failure.
  /// Throws: what else it throws.
  template <class Part>
  void run(const Part& part);
  /// Begins a collective that has its sequence number.
  Work start(Operation&& operation);
  /// Runs a collective with sequence number 0 to its end.
  void run_unnumbered(Operation&& operation);

  std::shared_ptr<MpiRankContext> context_;
  messages::MessageGroup group_;
  std::deque<std::shared_ptr<CollectiveRequest>>
      collectives_;  ///< in order; the transfers of the first ones may be in progress
  std::vector<std::shared_ptr<SendRequest>> sends_;
  std::vector<std::shared_ptr<RecvRequest>> recvs_;
  std::optional<messages::ReceiveProtocol> receives_;  ///< when group_ is complete
};

/// Establishes the control connections of a world on several hosts, by which ranks detect failures
/// of other hosts. Every rank calls it once.
/// Throws: CommError and TimeoutError, on every rank, if a rank cannot connect.
void connect_hosts(MpiCommunicator& world);

}  // namespace lockstep::mpi
