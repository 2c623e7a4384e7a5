#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/entrance.h"
#include "lockstep/comm/hierarchical/in_flight.h"
#include "lockstep/core/error.h"

namespace lockstep::hierarchical {

/// This process's place in a hierarchy, shared by all its groups: how it waits, and how a failure
/// of the host's world becomes one of all hosts', and the other way round. Both worlds are used in
/// a Use, or what holds the same.
class Endpoint : public detail::Entrance {
 public:
  /// names: MPI's number of each rank of this host. The worlds are those of which all groups are
  /// made: over MPI, and of this host.
  Endpoint(std::shared_ptr<Communicator> over_mpi, std::shared_ptr<Communicator> of_host,
           std::vector<int> names, std::chrono::milliseconds timeout, bool fits)
      : over_mpi_(std::move(over_mpi)),
        of_host_(std::move(of_host)),
        names_(std::move(names)),
        timeout_(timeout),
        fits_(fits) {}
  ~Endpoint() { stop_thread(); }

  const std::vector<int>& names() const { return names_; }

  void add(HierarchicalCommunicator& group) { groups_.push_back(&group); }
  void remove(HierarchicalCommunicator& group) { std::erase(groups_, &group); }

  /// From here on a thread advances what nobody waits for. Called once. Throws: CommError when the
  /// process may start no more threads.
  void make_progress_alone() {
    start_thread([this] { return advance_alone(); });
  }

  /// Advances all groups of this rank. What goes wrong is the failure of all worlds. By the rank's
  /// own thread.
  void poll() noexcept;
  /// Polls until the operation is complete, spinning, yielding, then sleeping.
  /// Throws: what ended the world.
  void wait(const InFlight& operation);
  /// Sees whether those whom operations wait for are there: this one, and all others of this rank.
  void check(const InFlight&) noexcept;

  /// Ends both worlds, unless they have ended. Any thread.
  void fail(bool timeout, std::string_view text) noexcept;
  /// Ends both worlds with what fn throws, and throws it again.
  template <class Fn>
  auto or_fail(const Fn& fn) {
    try {
      return fn();
    } catch (const CommError& error) {
      fail(error);
      throw;
    }
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws what ended the world, as it was met here.
  [[noreturn]] void throw_failure(std::string_view where);

  /// Entered by every call that touches this rank's groups. Keeps the thread out.
  class Use : detail::Entrance::Use {
   public:
    explicit Use(Endpoint& endpoint)
        : Entrance::Use(endpoint, "hierarchical", endpoint.over_mpi_->rank()) {}
  };

 private:
  void advance() noexcept;
  detail::ProgressThread::Outcome advance_alone() noexcept;
  template <class Fn>
  void attempt(const Fn& fn) noexcept;
  void fail(const std::exception& error) noexcept;
  void check_time(const InFlight& operation, std::chrono::steady_clock::duration waited);

  std::shared_ptr<Communicator> over_mpi_;
  std::shared_ptr<Communicator> of_host_;
  std::vector<int> names_;
  std::chrono::milliseconds timeout_;
  bool fits_;  ///< every rank of this host has cores of its own
  std::vector<HierarchicalCommunicator*> groups_;
  unsigned polls_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  bool timed_out_ = false;
  std::string failure_;
};

}  // namespace lockstep::hierarchical
