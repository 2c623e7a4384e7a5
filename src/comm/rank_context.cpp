#include "comm/rank_context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"

// Note [How a rank waits]
// A waiting rank polls all its groups, because other ranks may wait for its share of other
// operations. It spins if every rank has a core of its own, because a system call takes longer than
// most waits. After that it pauses between polls. Before each pause it checks other ranks and the
// timeout, which costs system calls and clock readings.
// If other ranks wake this rank, it publishes that it is about to sleep, polls once more, then
// sleeps. If only the rank's own polls move bytes, it yields its core while there is progress.
// After 20 ms without progress it sleeps 50 µs between polls, and spins after each sleep. The clock
// is first read after spinning, so that short waits do not read it. The timeout begins at that
// time.

namespace lockstep::inline v0_2::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// Duration of a wait after which a rank searches for a deadlock.
constexpr auto long_wait = std::chrono::seconds(1);
/// Time between two records of the ranks that a wait is for.
constexpr auto between_records = std::chrono::milliseconds(100);

/// Calls over() at most so many times, with pause() after each. Returns whether it returned true.
template <class Over, class Pause>
bool poll_times(int times, const Over& over, const Pause& pause) {
  for (int i = 0; i < times; ++i) {
    if (over()) return true;
    pause();
  }
  return false;
}

}  // namespace

std::string remedy_of_leaving(const Source& source) {
  const bool of_wrapper = source.owner == Source::Owner::distributed_data_parallel ||
                          source.owner == Source::Owner::distributed_optimizer;
  return concat(
      "; end loops on all ranks together: reduce their condition over all ranks, or for unequal "
      "data "
      "use join_uneven() of C++ or Join of Python",
      of_wrapper ? "; use no_sync() on all ranks or on none" : "");
}

/// A wait for one of several operations. The timeout is that of the operation with the least.
struct RankContext::LongWait {
  /// end: of the wait without a failure. can_stop: whether another thread may end it.
  LongWait(RankContext& in, std::span<const BackendRequest* const> any_of,
           Clock::time_point end = Clock::time_point::max(), bool can_stop = false)
      : context(in),
        operations(any_of),
        operation(**std::ranges::min_element(
            any_of, {},
            [&](const auto* one) { return wait_limit(one->operation(), in.settings_.timeout); })),
        deadline(wait_limit(operation.operation(), in.settings_.timeout)),
        until(end),
        is_bound(any_of.size() == 1 && !can_stop && end == Clock::time_point::max()) {
    if (is_recorded()) context.recorder_->begin_wait(operation.recorded(), is_bound);
  }
  ~LongWait() {
    context.end_long_wait();
    if (is_recorded()) context.recorder_->end_wait();
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  bool is_recorded() const { return operation.recorded() != 0; }

  RankContext& context;
  std::span<const BackendRequest* const> operations;
  const BackendRequest& operation;
  Deadline deadline;
  Clock::time_point until;
  /// Whether only the operation ends the wait. Another wait is not part of a deadlock.
  bool is_bound;
  Clock::time_point last_progress = Clock::now();
  Clock::time_point checked = last_progress;
  Clock::time_point recorded = last_progress;
  std::optional<Clock::time_point> searched;
  std::optional<Deadlock> deadlock;  ///< result of the last search
  ReportTimes warnings{is_recorded() ? context.recorder_->stall_warning()
                                     : std::chrono::milliseconds(0)};
};

RankContext::RankContext(const Settings& settings) : settings_(settings), pid_(::getpid()) {}

RankContext::~RankContext() = default;

void RankContext::add(BackendCommunicator& group) {
  if (recorder_ != nullptr) group.record_in(*recorder_);
  groups_.push_back(&group);
}

void RankContext::remove(BackendCommunicator& group) {
  if (recorder_ != nullptr) recorder_->remove_group(group.recorded_group());
  std::erase(groups_, &group);
}

void RankContext::set_recorder(std::shared_ptr<FlightRecorder> recorder) {
  const auto guard = lock();
  recorder_ = std::move(recorder);
  if (recorder_ == nullptr) return;
  for (auto* group : groups_) group->record_in(*recorder_);
}

void RankContext::expect_own_process() const {
  if (!in_child()) return;
  throw InvalidArgument(
      concat(settings_.backend, ": rank ", rank(), " is used in process ", ::getpid(),
             ", a forked child of ", pid_,
             " that joined the world; use its groups in the process that joined"));
}

inline RankContext& RankContext::CallGuard::admitted(RankContext& context) {
  if (context.settings_.has_mutex) context.expect_usable_thread();
  context.expect_own_process();
  if (!context.used_.exchange(true, std::memory_order_acquire)) return context;
  throw InvalidArgument(concat(context.settings_.backend, ": rank ", context.rank(),
                               " is used by two threads at once; its groups belong to one thread "
                               "at a time"));
}

RankContext::CallGuard::CallGuard(RankContext& context)
    : context_(admitted(context)), lock_(context.lock()) {
  context.entered_ = true;
}

RankContext::CallGuard::~CallGuard() {
  if (lock_.owns_lock()) {
    // Another thread that recorded a failure meanwhile could not send it to the other ranks.
    if (context_.failed()) context_.propagate_failure();
    // Destroying the last operation of a group may destroy the group, which locks the mutex:
    // release operations after unlocking.
    const auto complete = std::exchange(context_.complete_, {});
    lock_.unlock();
  }
  context_.used_.store(false, std::memory_order_release);
}

std::unique_lock<std::mutex> RankContext::lock() {
  return settings_.has_mutex ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
}

void RankContext::start_progress_thread() {
  thread_.emplace(mutex_, [this, begun = false]() mutable {
    if (!std::exchange(begun, true)) begin_progress_thread();
    return advance_in_progress_thread();
  });
}

bool RankContext::poll() {
  const bool progressed = advance();
  if (settings_.has_mutex) {
    for (auto* group : groups_) group->release(complete_);
  }
  return progressed;
}

bool RankContext::advance() {
  attempt([&] {
    for (std::size_t i = 0; i < groups_.size() && !failed(); ++i) groups_[i]->poll();
  });
  return std::exchange(advanced_, false);
}

std::size_t RankContext::pending() const {
  std::size_t pending = 0;
  if (failed()) return pending;
  for (const auto* group : groups_) pending += group->pending();
  return pending;
}

ProgressThread::Outcome RankContext::advance_in_progress_thread() {
  if (std::exchange(entered_, false)) {
    return {.progressed = false, .pending = true, .own_thread_polled = true};
  }
  // Without pending operations, do not call the backend: the program may be finalising it (MPI).
  const auto before = pending();
  if (before == 0) {
    if (failed()) propagate_failure();
    return {.progressed = false, .pending = false};
  }
  const bool progressed = advance();
  const auto after = pending();
  return {.progressed = progressed || before > after, .pending = after != 0};
}

template <class Complete>
bool RankContext::poll_for(const Complete& complete, const BackendRequest& operation) {
  const auto state = poll_wait(
      [this] {
        if (poll()) progressed_ = true;
      },
      complete, [this] { return failed(); });
  if (state == WaitState::failed) throw_failure(operation.where());
  return state == WaitState::complete;
}

bool RankContext::finished(const BackendRequest& operation) {
  return poll_for([&] { return operation.complete(); }, operation);
}

template <class Over>
void RankContext::wait_long(LongWait& wait, const Over& finished) {
  auto over = until([&] {
    if (finished()) return true;
    check_long_wait(wait);
    return std::ranges::any_of(wait.operations, &BackendRequest::complete) && finished();
  });
  for (;;) {
    const auto now = Clock::now();
    if (now >= wait.until) return;
    if (std::exchange(progressed_, false)) wait.last_progress = now;
    if (settings_.policy.must_poll && now - wait.last_progress <= yield_time) {
      if (over.is_ready()) return;
      ::sched_yield();
    } else if (sleep_unless(over, std::min<std::chrono::nanoseconds>(wait.deadline.nap(),
                                                                     wait.until - now))) {
      return;
    }
    if (settings_.policy.must_poll && poll_times(settings_.policy.spins, finished, relax)) return;
  }
}

void RankContext::wait(const BackendRequest& operation) {
  const auto over = [&] { return finished(operation); };
  if (poll_times(settings_.policy.spins, over, relax)) return;
  if (poll_times(settings_.policy.yields, over, ::sched_yield)) return;
  const BackendRequest* const one = &operation;
  LongWait wait(*this, {&one, 1});
  wait_long(wait, over);
}

std::optional<std::size_t> RankContext::first_finished(
    std::span<const BackendRequest* const> operations) {
  auto found = operations.end();
  const auto find = [&] {
    found = std::ranges::find_if(operations, &BackendRequest::complete);
    return found != operations.end();
  };
  if (!poll_for(find, *operations.front())) return std::nullopt;
  return static_cast<std::size_t>(found - operations.begin());
}

std::optional<std::size_t> RankContext::wait_any(std::span<const BackendRequest* const> operations,
                                                 Clock::time_point deadline,
                                                 const std::stop_token& stop) {
  std::optional<std::size_t> first;
  const auto finished_or_stopped = [&] {
    first = first_finished(operations);
    return first || stop.stop_requested();
  };
  if (finished_or_stopped() || Clock::now() >= deadline) return first;
  constexpr int polls_between_clock_readings = 64;
  int polls = 0;
  const auto over = [&] {
    if (finished_or_stopped()) return true;
    return ++polls % polls_between_clock_readings == 0 && Clock::now() >= deadline;
  };
  if (poll_times(settings_.policy.spins, over, relax)) return first;
  if (poll_times(settings_.policy.yields, over, ::sched_yield)) return first;
  const std::stop_callback wake_up(stop, [this] { interrupt(); });
  LongWait wait(*this, operations, deadline, stop.stop_possible());
  wait_long(wait, finished_or_stopped);
  return first;
}

bool RankContext::sleep_unless(Condition& over, std::chrono::nanoseconds /*longest*/) {
  if (over.is_ready()) return true;
  std::this_thread::sleep_for(poll_pause);
  return false;
}

void RankContext::check_long_wait(LongWait& wait) {
  const auto now = Clock::now();
  if (now - wait.checked >= settings_.policy.between_checks) {
    wait.checked = now;
    for (const auto* operation : wait.operations) {
      check(*operation);
      if (operation->complete()) return;
    }
  }
  if (wait.is_recorded()) record_wait(wait, now);
  check_time(wait.operation, wait.deadline.elapsed());
  check_deadlock(wait, now);
}

WaitOf RankContext::publish_wait(const BackendRequest& /*operation*/) {
  return recorder_ ? recorder_->waits() : no_waits;
}

void RankContext::check_deadlock(LongWait& wait, Clock::time_point now) {
  if (!wait.is_bound || wait.deadline.elapsed() < long_wait) return;
  if (wait.searched && now - *wait.searched < settings_.policy.between_searches) return;
  wait.searched = now;
  const auto found = find_deadlock(publish_wait(wait.operation), world_rank(rank()));
  const auto before = std::exchange(wait.deadlock, found);
  if (!wait.deadlock || wait.deadlock != before) return;
  record({.kind = Failure::Kind::mismatch,
          .rank = wait.deadlock->rank_at_fault(),
          .text = wait.deadlock->text() + wait.operation.note()});
  propagate_failure();
  throw_failure(wait.operation.where());
}

void RankContext::record_wait(LongWait& wait, Clock::time_point now) {
  if (now - wait.recorded < between_records) return;
  wait.recorded = now;
  recorder_->poll_wait();
  recorder_->set_missing(wait.operation.missing());
  if (const auto time = wait.warnings.due(wait.deadline.elapsed()))
    recorder_->warn_of_stall(*time / 2.0);
}

void RankContext::check_time(const BackendRequest& operation, std::chrono::nanoseconds waited) {
  const auto limit = wait_limit(operation.operation(), settings_.timeout);
  if (waited < limit + operation.grace()) return;
  const auto missing = operation.missing();
  record(
      {.kind = Failure::Kind::timeout,
       .rank = lowest(missing),
       .text = concat(operation.operation().label(), operation.of_group(),
                      in_parentheses(operation.operation().issue.source), " waited ",
                      limit.count() / 1000.0, " s for ", missing_text(missing), operation.note())});
  propagate_failure();
  throw_failure(operation.where());
}

void RankContext::throw_failure(std::string_view where) {
  const auto cause = failure();
  if (recorder_ != nullptr) recorder_->fail(cause.text, cause.rank);
  for (auto* group : groups_) group->drop(complete_);
  raised_failure_.raise(where, cause);
}

void RankContext::fail(const Failure& failure) noexcept {
  if (in_child()) return;
  raised_failure_.set_raised();
  // If another rank is at fault, the text names it already.
  const bool is_own = failure.rank < 0 || failure.rank == world_rank(rank());
  record(is_own ? failure.with(concat("rank ", world_rank(rank()), ": ", failure.text)) : failure);
}

Failure RankContext::failure_by(const std::exception& error) const {
  auto failure = failure_of(error);
  const auto* known = dynamic_cast<const Error*>(&error);
  // All ranks raise the text of the first failure, not that of the error on this rank.
  if (known != nullptr && !known->cause().empty()) failure.text = known->cause();
  return failure;
}

void RankContext::abandon(BackendCommunicator& group, std::string_view cause) noexcept {
  if (in_child()) return;
  fail(failure_of_program(Failure::Kind::abandoned, cause));
  std::vector<std::shared_ptr<void>>
      pending;  // destroyed after the lock: the last operation may destroy its group
  const auto guard = lock();
  group.drop(pending);
}

}  // namespace lockstep::detail
