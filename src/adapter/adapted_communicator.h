#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapter/c10d_transport.h"
#include "comm/communicator.h"

namespace lockstep::inline v0_2::adapter {

/// A Communicator of one rank over some ranks of a c10d::Backend.
class AdaptedCommunicator final : public Communicator,
                                  public std::enable_shared_from_this<AdaptedCommunicator> {
 public:
  /// members: ranks of the backend in the order of the group. number: distinguishes messages of
  /// groups with the same members.
  AdaptedCommunicator(std::shared_ptr<RankContext> context, std::vector<int> members, int rank,
                      int number);
  ~AdaptedCommunicator() override;

  std::string_view backend() const override { return context_->name(); }
  int world_rank(int rank) const override { return group_->world_rank(rank); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key) override;
  void fail(std::string_view cause) noexcept override;
  void fail_with(const detail::Failure& failure) noexcept override;
  void make_progress() override;

  /// Exchanges the hosts of all ranks, in a collective with the number 0. Begins to watch the store
  /// for failures, if there is one. host: the name of this rank's host. Called once for the world.
  /// Throws: CommError when ranks run different versions of Lockstep. InvalidArgument when some
  /// ranks flush denormals and others keep them.
  void exchange_hosts(const std::string& host, const c10::intrusive_ptr<c10d::Store>& store);

  RankContext& context() const { return *context_; }
  /// "all_reduce #17 (c10d/gloo) rank 2 of 4".
  std::string where(std::string_view label) const;

 private:
  Work begin(Operation&& operation) override;
  /// Begins a numbered operation.
  Work start(Operation&& operation);
  void begin_self_message(const std::shared_ptr<C10dRequest>& request);
  RequestThread& thread_of(const Operation& operation);

  std::shared_ptr<RankContext> context_;
  std::shared_ptr<const messages::MessageGroup> group_;
  /// One thread for collectives (key nullopt), and one for each direction and peer of messages.
  /// Created on first use.
  std::map<std::optional<std::pair<Collective, int>>, std::unique_ptr<RequestThread>> threads_;
  /// Unmatched messages to this rank itself: all sends, or all recvs.
  std::deque<std::shared_ptr<C10dRequest>> self_messages_;
};

}  // namespace lockstep::adapter
