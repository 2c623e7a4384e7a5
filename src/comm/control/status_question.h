#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::control {

/// The answer of the hosts of a job but this one.
struct HostsAnswer {
  struct Host {
    /// Whether rank 0 of the job is there and has not answered: no other host was asked.
    bool is_of_silent_rank_0() const { return !has_answered && ranks == std::vector{0}; }

    std::string name;
    std::vector<int> ranks;
    bool has_answered = false;
  };
  bool is_complete = false;  ///< every host has answered
  std::vector<Host> hosts = {};
  std::vector<std::string> suspicions = {};  ///< a text for each host whose heartbeats are late
  std::vector<std::string> records = {};     ///< of StatusSource::records(), of all hosts
};

/// Asks the rank at this socket of this host about the ranks of the other hosts. Waits at most
/// `longest`. The answer has no hosts if no rank of this user listens there.
HostsAnswer ask_hosts(const std::string& socket, std::chrono::milliseconds longest);

}  // namespace lockstep::control
