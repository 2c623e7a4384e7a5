#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/control/connection.h"
#include "comm/control/joining.h"
#include "launch/plan.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The kinds of frames between nodes, besides heartbeats and failures. No `lockstep status` asks
/// them, so that the two kinds of its question and answer are free.
inline constexpr auto signal_kind = control::Kind::question;  ///< payload: number of a signal
inline constexpr auto text_kind = control::Kind::answer;      ///< payload: a text of exchange()

inline control::Frame signal_frame(int signal) {
  return {.kind = signal_kind, .payload = std::to_string(signal)};
}

/// The connections of this launcher to the other nodes of its job: of node 0 to all others, of
/// another node to node 0, which sends on what it receives. Note [How nodes watch one another] is
/// in nodes.cpp.
class Nodes {
 public:
  using Clock = std::chrono::steady_clock;

  /// Waits until all nodes are connected, or until enough() accepts their number on node 0. Calls
  /// on_wait every 20 ms; an exception from it ends the wait on all nodes that are connected.
  /// Throws: TimeoutError naming the missing nodes. CommError if node 0's port cannot be used, if
  /// versions or numbers of nodes differ, and with the error by which another node ends the wait.
  Nodes(const Options& options, std::function<void()> on_wait, std::function<bool(int)> enough);
  /// Sends what is queued. Node 0 then waits up to 1 s until the others have received it.
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  /// Appends what poll() must wait for, until next() at the latest.
  void await(std::vector<pollfd>& awaited) const;
  Clock::time_point next() const;
  /// Receives, and sends heartbeats.
  void update();
  /// The failures and signals that other nodes have sent since the last call, and a failure for
  /// each node that is lost.
  std::vector<control::Frame> take_received() { return std::exchange(received_, {}); }
  /// The first received signal that asks the launchers to end.
  std::optional<int> take_end_signal();
  /// The secret of a world of these nodes, from what node 0 has sent to all.
  control::Token token_of(std::string_view use) const {
    return control::derived_token(token_, use);
  }
  /// Sends a failure or a signal to all other nodes; but: without the one of this number.
  void send(const control::Frame& frame, int but = -1);

  /// Gives this node's text to the others. texts() are those of all nodes in their order, as soon
  /// as it has them, once. That of a lost node is lost_text and why; that of a node without which
  /// the attempt began is empty.
  void exchange(const std::string& text);
  std::optional<std::vector<std::string>> texts();
  /// The numbers of the nodes that this one has lost in this attempt, or that were absent.
  std::vector<int> lost() const;
  static constexpr std::string_view lost_text = "lost: ";

  /// "node 1 of 2 failed first: WHY (host b)".
  std::string failed_text(int number, std::string_view host, std::string_view why) const;

 private:
  struct Peer {
    control::Member member;
    Clock::duration last_frame{};  ///< as running_ counts
    bool present = true;
    bool lost = false;     ///< before it has sent this attempt's last texts
    std::string end = {};  ///< failed_text() of the error by which it ends
    std::optional<std::string> text = {};
  };

  void read(Peer& peer);
  void lose(Peer& peer, const std::string& why);
  bool is_node_0() const { return place_.number == 0; }
  /// On node 0: sends the texts of all nodes to each, if all have one. On another node: completes
  /// the texts if node 0 is not present.
  void collect();

  NodePlace place_;
  control::Token token_;
  std::vector<Peer> peers_;
  std::chrono::milliseconds limit_{};     ///< longest time without a frame of a node
  std::chrono::milliseconds interval_{};  ///< between heartbeats
  Clock::duration running_{};             ///< time in which this process was not stopped
  Clock::duration last_stop_{};           ///< time of the last stop that was longer than limit_
  Clock::duration after_stop_{};          ///< its end, as running_ counts
  Clock::time_point updated_ = Clock::now();
  Clock::duration heartbeat_{};  ///< time of the last heartbeat, as running_ counts
  std::vector<control::Frame> received_;
  std::optional<std::string> own_text_;
  std::vector<std::string> texts_;
};

/// Longest time until all nodes have joined.
std::chrono::milliseconds rendezvous_time(const Options& options);

/// An attempt on several nodes that is ready to start, unless nodes were lost.
struct Start {
  std::vector<int> absent;  ///< numbers of the nodes without which it begins
  Plan plan;                ///< of this node's ranks, with their places in the world
  Descriptor listening;     ///< node 0: the socket on which rank 0 listens
  /// Empty, or the texts() of nodes that were lost meanwhile, and empty ones of the others.
  std::vector<std::string> lost;
};

/// Tells the other nodes this node's number of ranks, and makes the plan of the next attempt.
/// wait: waits for the nodes' next frame.
Start start_attempt(const Plan& plan, int restarts, Nodes& nodes,
                    const std::function<void()>& wait);

}  // namespace lockstep::launch
