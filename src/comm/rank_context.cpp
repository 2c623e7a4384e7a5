#include "comm/rank_context.h"

#include <sched.h>

#include <new>
#include <thread>
#include <utility>

#include "core/text.h"

// Note [How a rank waits]
// A waiting rank polls all its groups, so that an operation that it does not wait for holds up no
// other rank. It spins while every rank has a core of its own, since a system call costs more than
// most waits last. After that it pauses between polls. Before each pause it checks other ranks and
// the timeout, which cost system calls and clock readings.
// A rank that other ranks wake publishes that it is about to sleep, polls once more, then sleeps. A
// rank whose own polls move the bytes yields its core while something comes. After 20 ms without
// news it sleeps briefly between polls, and spins after each sleep.
// The first clock reading comes after the first spins: a wait that is soon over reads no clock. So
// the timeout begins then, too.

namespace lockstep::inline v0_2::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// After so long a wait a rank looks for a deadlock.
constexpr auto long_wait = std::chrono::seconds(1);

}  // namespace

struct RankContext::LongWait {
  LongWait(RankContext& in, const BackendRequest& what)
      : context(in),
        operation(what),
        limit(wait_limit(what.operation(), in.timeout_)),
        deadline(limit) {}
  ~LongWait() { context.end_long_wait(); }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  RankContext& context;
  const BackendRequest& operation;
  std::chrono::milliseconds limit;
  Deadline deadline;
  Clock::time_point last_news = Clock::now();
  Clock::time_point checked = last_news;
};

RankContext::RankContext(const Settings& settings)
    : backend_(settings.backend),
      rank_(settings.rank),
      timeout_(settings.timeout),
      policy_(settings.policy),
      has_mutex_(settings.has_mutex) {}

RankContext::~RankContext() = default;

RankContext& RankContext::Use::admitted(RankContext& context) {
  if (context.has_mutex_) context.expect_usable_thread();
  return context;
}

RankContext::Use::Use(RankContext& context)
    : context_(admitted(context)),
      one_(context.usage_, context.backend_, context.rank_),
      lock_(context.hold()) {
  context.entered_ = true;
}

RankContext::Use::~Use() {
  if (!lock_.owns_lock()) return;
  // A thread that recorded a failure meanwhile has left it to this one to tell the others.
  if (context_.failed()) context_.spread();
  // With its last operation a group may end, which takes the mutex.
  const auto complete = std::exchange(context_.complete_, {});
  lock_.unlock();
}

std::unique_lock<std::mutex> RankContext::hold() {
  return has_mutex_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
}

void RankContext::start_progress_thread() {
  thread_.emplace(mutex_, [this] { return advance_alone(); });
}

bool RankContext::poll() {
  const bool news = advance();
  if (has_mutex_) {
    for (auto* group : groups_) group->release(complete_);
  }
  return news;
}

std::size_t RankContext::pending() const {
  std::size_t pending = 0;
  if (failed()) return pending;
  for (const auto* group : groups_) pending += group->pending();
  return pending;
}

ProgressThread::Outcome RankContext::advance_alone() {
  if (std::exchange(entered_, false)) {
    return {.news = false, .under_way = true, .attended = true};
  }
  // Without an operation the backend is not called: the program may be about to end it.
  const auto before = pending();
  if (before == 0) {
    if (failed()) spread();
    return {.news = false, .under_way = false};
  }
  const bool news = advance();
  const auto after = pending();
  return {.news = news || after<before, .under_way = after> 0};
}

bool RankContext::finished(const BackendRequest& operation) {
  if (poll()) news_ = true;
  if (operation.complete()) return true;
  if (!failed()) return false;
  // All that other ranks wrote before the failure is visible now.
  poll();
  if (operation.complete()) return true;
  throw_failure(operation.where());
}

bool RankContext::spin(const BackendRequest& operation) {
  for (int i = 0; i < policy_.spins; ++i) {
    if (finished(operation)) return true;
    relax();
  }
  return false;
}

void RankContext::wait(const BackendRequest& operation) {
  if (spin(operation)) return;
  for (int i = 0; i < policy_.yields; ++i) {
    if (finished(operation)) return;
    ::sched_yield();
  }
  wait_long(operation);
}

void RankContext::wait_long(const BackendRequest& operation) {
  LongWait wait(*this, operation);
  const auto over = [&] {
    if (finished(operation)) return true;
    look(wait);
    return operation.complete();
  };
  for (;;) {
    const auto now = Clock::now();
    if (std::exchange(news_, false)) wait.last_news = now;
    if (policy_.must_poll && now - wait.last_news <= awake) {
      if (over()) return;
      ::sched_yield();
    } else if (sleep_unless(over, wait.deadline.nap())) {
      return;
    }
    if (policy_.must_poll && spin(operation)) return;
  }
}

bool RankContext::sleep_unless(const std::function<bool()>& over,
                               std::chrono::nanoseconds /*longest*/) {
  if (over()) return true;
  std::this_thread::sleep_for(nap);
  return false;
}

void RankContext::look(LongWait& wait) {
  const auto now = Clock::now();
  if (now - wait.checked >= policy_.between_checks) {
    wait.checked = now;
    check(wait.operation);
    if (wait.operation.complete()) return;
  }
  check_time(wait);
  if (wait.deadline.elapsed() >= long_wait) check_deadlock(wait.operation);
}

void RankContext::check_time(LongWait& wait) {
  const auto& operation = wait.operation;
  if (wait.deadline.elapsed() < wait.limit + operation.grace()) return;
  const auto missing = operation.missing();
  record(FailureKind::timeout,
         {.timeout = true,
          .text = concat(operation.operation().label(), " waited ", wait.limit.count() / 1000.0,
                         " s for ", awaited(missing)),
          .rank = missing.empty() ? -1 : named(lowest(missing))});
  spread();
  throw_failure(operation.where());
}

std::string RankContext::awaited(std::span<const int> ranks) const {
  return detail::awaited(ranks);
}

void RankContext::throw_failure(std::string_view where) {
  for (auto* group : groups_) group->drop(complete_);
  raised_failure_.raise(where, failure());
}

void RankContext::fail(FailureKind kind, const control::Failure& failure) noexcept {
  if (in_child()) return;
  raised_failure_.set_raised();
  control::Failure by_this_rank{
      .timeout = failure.timeout, .rank = failure.rank, .by_program = failure.by_program};
  try {
    // The text of another rank's failure names that rank.
    const bool is_own = failure.rank < 0 || failure.rank == named(rank_);
    by_this_rank.text = is_own ? concat("rank ", named(rank_), ": ", failure.text) : failure.text;
  } catch (const std::bad_alloc&) {
    by_this_rank.text = "a rank failed";  // short enough to need no memory
  }
  record(kind, by_this_rank);
}

void RankContext::abandon(BackendCommunicator& group, std::string_view cause) noexcept {
  if (in_child()) return;
  fail(FailureKind::abandoned, failure_of_program(cause));
  std::vector<std::shared_ptr<void>> pending;  // outlives the lock: with the last a group may end
  const auto lock = hold();
  try {
    group.drop(pending);
  } catch (const std::bad_alloc&) {
    // They stay until the group ends; over MPI, which may still write to their memory, for ever.
  }
}

}  // namespace lockstep::detail
