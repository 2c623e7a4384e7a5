#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/messages/transport.h"
#include "comm/waiting.h"

namespace lockstep::inline v0_2::messages {

/// Messages that are complete, for a transport whose progress() calls their Done at its end.
class Completions {
 public:
  void add(Transport::Done done, std::size_t bytes) { all_.push_back({std::move(done), bytes}); }
  bool empty() const { return all_.empty(); }
  void clear() { all_.clear(); }
  /// Calls and removes them. False if there are none. A call may begin other messages.
  bool call() {
    if (all_.empty()) return false;
    auto calls = std::exchange(all_, std::move(called_));
    for (auto& [done, bytes] : calls) {
      if (done) done(bytes);
    }
    calls.clear();
    called_ = std::move(calls);
    return true;
  }

 private:
  struct Completion {
    Transport::Done done;
    std::size_t bytes;
  };
  std::vector<Completion> all_;
  std::vector<Completion> called_;  ///< empty; keeps its memory
};

/// A Transport between all ranks of a world, with what a world needs of it besides messages. The
/// folder of a network, such as comm/tcp, has one class that derives from it.
class Network : public Transport {
 public:
  /// As `from` of receive(): any rank.
  static constexpr int anyone = -1;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  ///< ranks on this host
  int last_tag() const { return last_tag_; }      ///< the highest of a message

  /// "mpi", "tcp" or "ucx": the backend's name in texts.
  virtual std::string_view name() const = 0;
  /// The pieces that suit a group on this number of hosts.
  virtual Pieces pieces(int hosts) const = 0;

  /// Whether messages are possible. Any thread.
  virtual bool is_running() const noexcept { return true; }
  /// Throws: InvalidArgument naming the rank if this thread may not use the network.
  virtual void expect_usable_thread() const {}
  /// Whether the end of the network waits for all ranks, so that none may end before.
  virtual bool ends_together() const { return true; }
  /// The world has failed: the end of this process waits for no rank. Any thread.
  virtual void abandon() noexcept {}
  /// Waits until a message may have advanced, for at most `longest`.
  virtual void sleep(std::chrono::nanoseconds longest) {
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(longest, detail::poll_pause));
  }
  /// Ends a sleep(). Any thread.
  virtual void interrupt() noexcept {}

 protected:
  int rank_ = 0;
  int size_ = 1;
  int local_size_ = 1;
  int last_tag_ = 0;
};

}  // namespace lockstep::messages
