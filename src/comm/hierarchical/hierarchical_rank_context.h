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

#include "comm/communicator.h"
#include "comm/entrance.h"
#include "comm/hierarchical/hierarchical_request.h"
#include "comm/met_failure.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {

/// This process's place in a hierarchy, shared by all its groups. It waits for operations, and
/// makes a failure of the host's world one of all hosts' and vice versa. Both worlds are used only
/// under a Use, or under the same lock (hold()).
class RankContext : public detail::Entrance {
 public:
  /// names: MPI's number of each rank of this host. The worlds are those of which all groups are
  /// made: over MPI, and of this host.
  RankContext(std::shared_ptr<Communicator> over_mpi, std::shared_ptr<Communicator> of_host,
              std::vector<int> names, std::chrono::milliseconds timeout, bool fits)
      : over_mpi_(std::move(over_mpi)),
        of_host_(std::move(of_host)),
        names_(std::move(names)),
        timeout_(timeout),
        fits_(fits) {}
  ~RankContext() { stop_thread(); }

  const std::vector<int>& names() const { return names_; }

  void add(HierarchicalCommunicator& group) { groups_.push_back(&group); }
  void remove(HierarchicalCommunicator& group) { std::erase(groups_, &group); }

  /// Starts the progress thread, which advances operations between calls. Called once. Throws:
  /// CommError when the process may start no more threads.
  void make_progress_alone() {
    start_thread([this] { return advance_alone(); });
  }

  /// Advances all groups of this rank. An error fails all worlds. Called by the rank's own thread.
  void poll() noexcept;
  /// Polls until the operation is complete, spinning, yielding, then sleeping.
  /// Throws: what ended the world.
  void wait(const HierarchicalRequest& operation);
  /// Sees whether those whom operations wait for are there: this one, and all others of this rank.
  void check(const HierarchicalRequest&) noexcept;

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
  /// The program of this rank has ended the world: its next error is a later one.
  void set_failure_met() noexcept { met_failure_.set_met(); }

  /// Entered by every call that touches this rank's groups. Keeps the thread out.
  class Use : detail::Entrance::Use {
   public:
    explicit Use(RankContext& context)
        : Entrance::Use(context, "hierarchical", context.over_mpi_->rank()) {}
  };

 private:
  void advance() noexcept;
  detail::ProgressThread::Outcome advance_alone() noexcept;
  template <class Fn>
  void attempt(const Fn& fn) noexcept;
  void fail(const std::exception& error) noexcept;
  void check_time(const HierarchicalRequest& operation, std::chrono::steady_clock::duration waited);

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
  detail::MetFailure met_failure_;
};

}  // namespace lockstep::hierarchical
