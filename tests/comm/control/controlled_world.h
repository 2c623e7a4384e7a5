#pragma once

#include <unistd.h>

#include <chrono>
#include <iterator>
#include <memory>

#include "comm/control/control.h"
#include "comm/control/status_relay.h"
#include "tests/comm/control/meeting.h"

namespace lockstep::testing {

inline std::string socket_of(int rank) {
  return "lockstep-test-" + std::to_string(::getpid()) + "-" + std::to_string(rank);
}

/// A world of ranks on hosts of these letters. Each rank has two records: one short, one as long as
/// a message may be. Of its ranks, `serving` from `first` on serve their connections and answer
/// questions. Numbers of ranks below count from `first`.
class ControlledWorld {
 public:
  ControlledWorld(const std::string& hosts, int serving, int first = 0,
                  std::chrono::milliseconds heartbeat = 60s) {
    const int size = static_cast<int>(hosts.size());
    std::vector<control::Settings> others;
    const auto host = [&](int rank) { return hosts.substr(static_cast<std::size_t>(rank), 1); };
    auto rank_0 = rank_of(0, size, host(0));
    rank_0.timeout = std::chrono::milliseconds::max();
    rank_0.heartbeat = heartbeat;  // that of all ranks
    for (int rank = 1; rank < size; ++rank) {
      others.push_back(rank_of(rank, size, host(rank)));
      others.back().timeout = rank_0.timeout;
    }
    auto met = meet(rank_0, others);
    const auto add_or_keep = [&](int rank, std::vector<control::Member> members) {
      if (rank >= first && rank < first + serving) {
        add(rank, host(rank), std::move(members));
      } else {
        std::ranges::move(members, std::back_inserter(idle_));
      }
    };
    add_or_keep(0, std::move(met.of_rank_0));
    for (int rank = 1; rank < size; ++rank) {
      std::vector<control::Member> one;
      one.push_back(std::move(met.is_agreed[static_cast<std::size_t>(rank - 1)]));
      add_or_keep(rank, std::move(one));
    }
  }

  control::Control& rank(std::size_t rank) { return *ranks_[rank]; }
  /// Sends heartbeats of the ranks that do not serve.
  void send_heartbeats() {
    for (auto& member : idle_) member.connection.send({.kind = control::Kind::heartbeat});
  }
  /// The failure that ended the world. Waits until this rank receives it.
  detail::Failure failure_at(std::size_t rank) {
    EXPECT_EQ(failures_[rank].wait_for(30s), std::future_status::ready);
    return failures_[rank].get();
  }
  bool knows_of_no_failure(std::size_t rank) {
    return failures_[rank].wait_for(0s) != std::future_status::ready;
  }
  void end(std::size_t rank) { ranks_[rank].reset(); }
  /// The connection of the rank that does not serve, if there is one.
  control::Connection& idle_connection() { return idle_.front().connection; }

 private:
  void add(int rank, const std::string& host, std::vector<control::Member> others) {
    control::StatusSource source{
        .rank = rank, .host = host, .socket = socket_of(rank), .records = [rank] {
          return std::vector{"record of " + std::to_string(rank),
                             std::string(control::longest_answer, 'x')};
        }};
    const auto promise = std::make_shared<std::promise<detail::Failure>>();
    failures_.push_back(promise->get_future());
    ranks_.push_back(std::make_unique<control::Control>(
        std::move(others),
        [promise](const detail::Failure& failure) { promise->set_value(failure); },
        std::move(source)));
  }

  std::vector<std::unique_ptr<control::Control>> ranks_;
  std::vector<std::future<detail::Failure>> failures_;
  std::vector<control::Member> idle_;
};

}  // namespace lockstep::testing
