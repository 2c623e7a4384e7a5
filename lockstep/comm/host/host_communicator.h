#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/host/block.h"
#include "lockstep/comm/host/collective_flight.h"
#include "lockstep/comm/host/endpoint.h"
#include "lockstep/comm/host/message_flight.h"

namespace lockstep::host {

/// One rank's view of one group of a host world.
class HostCommunicator final : public Communicator,
                               public Pollable,
                               public std::enable_shared_from_this<HostCommunicator> {
 public:
  /// members are world ranks in the order of the group; one of them may own the memory of the
  /// block.
  HostCommunicator(std::shared_ptr<Endpoint> endpoint, std::vector<int> members, int rank,
                   Block block, bool owns_block);
  ~HostCommunicator() override;

  std::string_view backend() const override { return "host"; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::optional<std::uint64_t> place_of(const void* memory) const override;
  std::byte* at_place(std::uint64_t place) const override;
  std::shared_ptr<Communicator> split(int color, int key) override;
  void fail(std::string_view cause) noexcept override;
  void fail_by_timeout(std::string_view cause) noexcept override;
  void look() override;
  /// fail(), by an operation that nobody will wait for.
  void abandon(std::string_view cause) noexcept;

  void poll() override;
  void drop() noexcept override;

  /// Meets all members in the collective that numbers 0. Called once, by who made this
  /// communicator.
  void join();

  // For the operations in flight.
  using Use = Endpoint::Use;
  Endpoint& endpoint() const { return *endpoint_; }
  const Block& block() const { return block_; }
  std::span<const int> members() const { return members_; }
  /// What the members are called in messages.
  std::span<const int> names() const { return names_; }
  std::string where(std::string_view label) const;
  Progress& progress() { return progress_; }
  void ring(int member) const {
    endpoint_->ring(std::span(&members_[static_cast<std::size_t>(member)], 1));
  }
  void ring() const { endpoint_->ring(members_); }

 private:
  Work begin(Operation&& operation) override;
  void fail_as(Failure::Kind kind, std::string_view cause) noexcept;
  Work begin_message(Operation&& operation);
  /// Begins a numbered collective.
  Work start(Operation&& operation);

  std::shared_ptr<Endpoint> endpoint_;
  std::vector<int> members_;
  std::vector<int> names_;
  Block block_;
  bool owns_block_;
  Progress progress_;
  std::deque<std::shared_ptr<CollectiveFlight>>
      collectives_;  ///< in order; the first may be working
  std::vector<std::shared_ptr<MessageFlight>> messages_;
};

}  // namespace lockstep::host
