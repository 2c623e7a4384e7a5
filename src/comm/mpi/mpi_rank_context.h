#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/control.h"
#include "comm/entrance.h"
#include "comm/met_failure.h"
#include "comm/mpi/mpi.h"
#include "comm/mpi/mpi_request.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/mpi/notice.h"
#include "core/deadline.h"

namespace lockstep::inline v0_2::mpi {

/// Something of this rank that advances when polled: a group's operations.
class Pollable {
 public:
  /// Does what can be done without blocking.
  virtual void poll() = 0;
  /// Whether an operation is still to be advanced.
  virtual bool under_way() const = 0;
  /// Hands over the operations that are complete and that nothing stands before.
  virtual void let_go(std::vector<std::shared_ptr<void>>& complete) = 0;

 protected:
  ~Pollable() = default;
};

/// This process's place among the processes of its MPI, shared by all its groups. It waits for
/// operations, and detects failures and ranks that leave. It lives until MPI ends. Messages and
/// groups are used only under a Use, or under the same lock (hold()). Note [How a world over MPI
/// fails] is in mpi_rank_context.cpp.
class RankContext : public detail::Entrance {
 public:
  explicit RankContext(const Options& options);
  ~RankContext() { stop_thread(); }

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  MpiTransport& transport() { return transport_; }
  const Options& options() const { return options_; }

  void add(Pollable& group) { groups_.push_back(&group); }
  /// With its last group a rank leaves.
  void remove(Pollable& group);

  /// Starts the progress thread, which advances operations between calls. Called once. Throws:
  /// CommError when the process may start no more threads.
  void make_progress_alone() {
    start_thread([this] { return advance_alone(); });
  }

  /// The highest number of a group that this rank is or was in.
  int last_group() const { return last_group_; }
  void set_last_group(int number) { last_group_ = number; }

  /// Moves bytes and advances all groups of this rank; true if anything arrived. An error fails the
  /// world. Called by the rank's own thread.
  bool poll();
  /// Does what may go wrong with MPI; that is then the world's failure.
  void attempt(const std::function<void()>& call) noexcept;

  /// Polls until the operation is complete, spinning, yielding, then sleeping.
  /// Throws: what ended the world.
  void wait(const MpiRequest& operation);
  /// Ends the world when a rank that the operation waits for has left. Throws that.
  void check(const MpiRequest& operation);

  /// Ends the world unless it has ended, and tells all ranks. Any thread.
  void fail(const Failure& failure) noexcept;
  /// The same from within poll(), which tells them at its end.
  void fail_within(const Failure& failure) noexcept { record(failure); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws what ended the world, as it was met here.
  [[noreturn]] void throw_failure(std::string_view where);
  /// The program of this rank has ended the world: its next error is a later one.
  void set_failure_met() noexcept { met_failure_.set_met(); }

  /// Watches these ranks from here on, and tells them what ends the world. Called once.
  void watch(std::vector<control::Member> others);

  /// Tells the others that this rank takes part in nothing more.
  void leave() noexcept;
  /// The same, and waits until all have left, so that no message is under way when MPI ends.
  void part() noexcept;

  /// Entered by every call that touches this rank's groups; by the main thread only where MPI wants
  /// that. Keeps the thread out.
  class Use : detail::Entrance::Use {
   public:
    explicit Use(RankContext& context);
    ~Use();

   private:
    static RankContext& checked(RankContext& context);

    RankContext& context_;
  };

 private:
  bool advance();
  detail::ProgressThread::Outcome advance_alone();
  void listen();
  void hear();
  /// Heard failures are others', who have told all.
  enum class Origin { here, heard };
  void record(const Failure& failure, Origin origin = Origin::here) noexcept;
  void spread() noexcept;
  void tell_all(const Notice& notice) noexcept;
  void check_time(const MpiRequest& operation, detail::Deadline& deadline,
                  std::chrono::milliseconds limit);

  Options options_;
  MpiTransport transport_;
  bool fits_;              ///< every rank of this host has cores of its own
  bool main_thread_only_;  ///< and others must not call MPI
  std::vector<Pollable*> groups_;
  int last_group_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  Origin origin_ = Origin::here;
  detail::MetFailure met_failure_;
  bool stopped_ = false;  ///< the others know of the failure, and MPI is used no more
  bool gone_ = false;     ///< this rank has left
  std::vector<bool> left_;
  Notice heard_{};
  std::optional<control::Control> control_;  ///< of a world of several hosts
};

}  // namespace lockstep::mpi
