#include "comm/progress_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [When the progress thread polls]
// A thread advances operations only while it holds the mutex. Every call of the rank's own thread
// holds the mutex, and a wait holds it from beginning to end. A waiting rank therefore polls in its
// own thread at full speed. The progress thread never blocks on the mutex.
// The progress thread sleeps between polls, longer after each poll without progress. The pause is
// longest while the rank's own thread polls, or has polled since the last poll. When nothing has
// been pending for a few milliseconds, the thread sleeps until it is woken. Only then does the next
// operation cost a system call. An operation that is waited for at once therefore rarely competes
// with the progress thread.
// The thread asks the scheduler for short time slices, for cores that it shares with a computing
// thread. Only the rank's own thread releases operations and groups, so no destructor of the
// program runs in the progress thread.

namespace lockstep::inline v0_2::detail {
namespace {

using std::chrono::microseconds;

constexpr auto shortest_pause = microseconds(50);
/// While operations are pending.
constexpr auto longest_busy_pause = microseconds(200);
/// While none is pending, or the rank's own thread polls.
constexpr auto longest_pause = microseconds(1000);

/// Requests a short time slice from the scheduler (Linux 6.12). The thread then preempts a
/// computing thread on the same core sooner, and gets no more time in total.
void request_short_slices() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;  // the user chose another policy
  // The kernel's struct sched_attr, which the C library's headers lack.
  struct {
    std::uint32_t size = 48;
    std::uint32_t policy = SCHED_OTHER;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime = 100'000;  // slice in ns
    std::uint64_t deadline = 0;
    std::uint64_t period = 0;
  } attributes;
  static_assert(sizeof attributes == 48);
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/// All running progress threads. They are stopped at exit, before static objects that they use are
/// destroyed. This object itself is never destroyed.
struct Running {
  std::mutex mutex;
  std::vector<ProgressThread*> threads;
  std::atomic<bool> stopped_at_exit{false};

  static Running& get() {
    static auto* running = new Running;
    return *running;
  }

  /// Handlers of the exit run in reverse order, so this one runs before those that were registered
  /// before, as CUDA's. Called for each thread, as what it uses may have begun after other threads.
  static void stop_at_exit() {
    std::atexit([] {
      get().stopped_at_exit = true;
      for (auto* thread : get().all()) thread->stop();
    });
  }

  std::vector<ProgressThread*> all() {
    const std::lock_guard lock(mutex);
    return threads;
  }
};

}  // namespace

ProgressThread::ProgressThread(std::mutex& mutex, std::function<Outcome()> advance)
    : mutex_(mutex), advance_(std::move(advance)), process_(::getpid()) {
  Running::stop_at_exit();
  auto& running = Running::get();
  const std::lock_guard lock(running.mutex);
  running.threads.push_back(this);
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    running.threads.pop_back();
    throw CommError(concat("progress: cannot start the progress thread: ", error.what()));
  }
  ::pthread_setname_np(thread_.native_handle(), "lockstep");
}

ProgressThread::~ProgressThread() {
  stop();
  auto& running = Running::get();
  const std::lock_guard lock(running.mutex);
  std::erase(running.threads, this);
}

void ProgressThread::wake() noexcept {
  auto asleep = State::asleep;
  if (state_.compare_exchange_strong(asleep, State::awake)) state_.notify_one();
}

void ProgressThread::stop() noexcept {
  if (!thread_.joinable()) return;
  // A forked child process has no such thread. MPI may call exit() in the progress thread itself.
  if (::getpid() != process_ || thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
    return;
  }
  state_ = State::stopping;
  state_.notify_one();
  thread_.join();
}

bool ProgressThread::stopped_at_exit() noexcept { return Running::get().stopped_at_exit; }

void ProgressThread::run() noexcept {
  request_short_slices();
  auto pause = shortest_pause;
  for (;;) {
    state_.wait(State::asleep);
    if (state_ == State::stopping) return;
    std::this_thread::sleep_for(pause);
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      pause = std::min(2 * pause, longest_pause);
      continue;
    }
    const auto [progressed, pending, own_thread_polled] = advance_();
    if (own_thread_polled) {
      pause = std::min(2 * pause, longest_pause);
    } else if (!pending && pause == longest_pause) {
      auto awake = State::awake;
      state_.compare_exchange_strong(awake, State::asleep);
      pause = shortest_pause;
    } else {
      pause = progressed ? shortest_pause
                         : std::min(2 * pause, pending ? longest_busy_pause : longest_pause);
    }
  }
}

}  // namespace lockstep::detail
