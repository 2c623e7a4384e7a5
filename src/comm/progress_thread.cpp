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

#include "core/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How the progress thread keeps out of the way]
// The thread that holds the mutex advances operations. Every call of the rank's own thread holds
// it, and a wait holds it from beginning to end. A rank that waits therefore polls by itself, at
// full speed. The progress thread never waits for the mutex.
// Between polls the progress thread sleeps, longer each time that nothing has come. It sleeps
// longest while the rank's own thread polls, or has polled since the last time. Once nothing has
// been pending for a few milliseconds, it sleeps until it is woken. Only then does the next
// operation pay for a system call that wakes it. An operation that is begun and waited for at once
// therefore hardly ever meets the progress thread.
// Beside a thread that computes on the same core it takes short turns. Only the rank's own thread
// releases operations and groups, so no destructor of the program runs in the progress thread.

namespace lockstep::inline v0_2::detail {
namespace {

using std::chrono::microseconds;

constexpr auto shortest = microseconds(50);
/// While something is under way.
constexpr auto longest_of_busy = microseconds(200);
/// While nothing is, or the rank's own thread polls.
constexpr auto longest = microseconds(1000);

/// Where the kernel lets a thread ask for short turns (Linux 6.12), it is scheduled sooner beside a
/// thread that computes, for no more time in all. Otherwise it would wait for the end of the
/// other's turn.
void ask_for_short_turns() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;  // the user chose another policy
  // The kernel's struct sched_attr, which the C library's headers lack.
  struct {
    std::uint32_t size = 48;
    std::uint32_t policy = SCHED_OTHER;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime = 100'000;  // ns of a turn
    std::uint64_t deadline = 0;
    std::uint64_t period = 0;
  } attributes;
  static_assert(sizeof attributes == 48);
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/// The threads that run, to be stopped before what they use is gone. Never destroyed, since threads
/// may be stopped after any static object's end.
struct Running {
  std::mutex mutex;
  std::vector<ProgressThread*> threads;

  static Running& get() {
    static auto* running = [] {
      std::atexit([] {
        for (auto* thread : get().all()) thread->stop();
      });
      return new Running;
    }();
    return *running;
  }

  std::vector<ProgressThread*> all() {
    const std::lock_guard lock(mutex);
    return threads;
  }
};

}  // namespace

ProgressThread::ProgressThread(std::mutex& mutex, std::function<Outcome()> advance)
    : mutex_(mutex), advance_(std::move(advance)), process_(::getpid()) {
  auto& running = Running::get();
  const std::lock_guard lock(running.mutex);
  running.threads.push_back(this);
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    running.threads.pop_back();
    throw CommError(concat("progress: no thread to advance operations with: ", error.what()));
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
  // In a child that was forked there is no such thread; and MPI may end the process in it.
  if (::getpid() != process_ || thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
    return;
  }
  state_ = State::stopping;
  state_.notify_one();
  thread_.join();
}

void ProgressThread::run() noexcept {
  ask_for_short_turns();
  auto nap = shortest;
  for (;;) {
    state_.wait(State::asleep);
    if (state_ == State::stopping) return;
    std::this_thread::sleep_for(nap);
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      nap = std::min(2 * nap, longest);
      continue;
    }
    const auto [news, under_way, attended] = advance_();
    if (attended) {
      nap = std::min(2 * nap, longest);
    } else if (!under_way && nap == longest) {
      auto awake = State::awake;
      state_.compare_exchange_strong(awake, State::asleep);
      nap = shortest;
    } else {
      nap = news ? shortest : std::min(2 * nap, under_way ? longest_of_busy : longest);
    }
  }
}

}  // namespace lockstep::detail
