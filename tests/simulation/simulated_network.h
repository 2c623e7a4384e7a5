#pragma once

#include <netinet/in.h>

#include <deque>
#include <set>

#include "tests/simulation/scheduler.h"

namespace lockstep::testing {

class SimulatedListener;
class SimulatedNetwork;

/// Host h has the addresses 127.0.0.1 and 10.0.0.h+1.
constexpr std::uint32_t network_address = 0x0a000001;
inline sockaddr_in address_of_host(int host, std::uint16_t port = 0) {
  return {.sin_family = AF_INET,
          .sin_port = htons(port),
          .sin_addr = {htonl(network_address + static_cast<unsigned>(host))},
          .sin_zero = {}};
}

/// One direction of a connection: packets arrive in order, each after a random delay. While the
/// link is cut, they wait, because their sender repeats them.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  /// may_be_late: whether Settings::late_percent applies.
  Pipe(SimulatedNetwork& network, int from, int to, bool may_be_late = false)
      : network_(network), from_(from), to_(to), may_be_late_(may_be_late) {}

  /// Calls the function when the packet arrives, unless the host of either side has lost power.
  void send(std::function<void()> arrive);
  /// Continues after the link was cut.
  void resume();

 private:
  void schedule();
  void deliver();

  SimulatedNetwork& network_;
  int from_;
  int to_;
  bool may_be_late_;
  std::deque<std::pair<Time, std::function<void()>>> packets_;
  bool scheduled_ = false;
};

/// The hosts of a world and the links between them.
class SimulatedNetwork {
 public:
  struct Settings {
    Time delay = std::chrono::microseconds(100);  ///< least delay between two hosts
    Time jitter = std::chrono::microseconds(100);
    int lost_percent = 0;  ///< packets that are lost and sent again
    Time repeat = std::chrono::milliseconds(20);
    int late_percent = 0;           ///< packets of sockets that are late in the first minute
    Time latest{};                  ///< longest delay of those
    std::size_t buffer = 64 << 10;  ///< bytes of a connection that its reader has not read
    bool splits = true;             ///< whether reads and writes may be partial
  };

  SimulatedNetwork(Scheduler& scheduler, Random& random, int hosts, const Settings& settings)
      : scheduler_(scheduler),
        random_(random),
        settings_(settings),
        hosts_(static_cast<std::size_t>(hosts)) {}

  Scheduler& scheduler() { return scheduler_; }
  Random& random() { return random_; }
  const Settings& settings() const { return settings_; }
  int hosts() const { return static_cast<int>(hosts_.size()); }

  /// The delay of the next packet.
  Time delay(int from, int to);
  /// What a late packet is later than others.
  Time lateness();

  // Faults.
  /// Cuts the link in one direction.
  void cut(int from, int to) { cut_.insert({from, to}); }
  void heal(int from, int to);
  bool is_cut(int from, int to) const { return cut_.contains({from, to}); }
  void keep_until_healed(std::shared_ptr<Pipe> pipe, int from, int to) {
    kept_[{from, to}].push_back(std::move(pipe));
  }
  void lose_power(int host) { hosts_[static_cast<std::size_t>(host)].powered = false; }
  bool powered(int host) const { return hosts_[static_cast<std::size_t>(host)].powered; }

  // Ports of a host. 0 requests the lowest port that is free, so ports of an earlier attempt are
  // used again.
  std::uint16_t bind(int host, std::uint16_t port, std::weak_ptr<SimulatedListener> listener);
  std::shared_ptr<SimulatedListener> listener(int host, std::uint16_t port);
  std::uint16_t client_port() { return next_client_port_++; }

  /// The first bytes that clients have sent on connections, for strangers that repeat them.
  std::vector<std::string> first_bytes;

 private:
  struct Host {
    bool powered = true;
    std::map<std::uint16_t, std::weak_ptr<SimulatedListener>> ports;
  };

  Time random_part(Time most);

  Scheduler& scheduler_;
  Random& random_;
  Settings settings_;
  std::vector<Host> hosts_;
  std::set<std::pair<int, int>> cut_;
  std::map<std::pair<int, int>, std::vector<std::shared_ptr<Pipe>>> kept_;
  std::uint16_t next_client_port_ = 40000;
};

}  // namespace lockstep::testing
