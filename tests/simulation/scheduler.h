#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "tests/random_programs/random.h"
#include "tests/simulation/fiber.h"
#include "tests/simulation/simulated_process.h"

namespace lockstep::testing {

using random_programs::Random;

/// Simulated time since the beginning of a world.
using Time = std::chrono::nanoseconds;
inline constexpr Time forever = Time::max();

/// A thread of a simulated process.
struct SimulatedThread {
  SimulatedThread(SimulatedProcess& of, int with_number, std::function<void()> body)
      : process(of), number(with_number), fiber(std::move(body)) {}

  SimulatedProcess& process;
  int number;
  Fiber fiber;
  std::uint64_t waits = 0;        ///< number of its waits so far; a timer of an earlier one is void
  const void* awaited = nullptr;  ///< what the current wait is for
  bool notified = false;
  Time pause{};  ///< added to its next short sleep, while its process has no news
};

/// The clock and the threads of all simulated processes. One thread runs at a time, and time passes
/// only while all wait. The seed determines which of several threads runs first.
class Scheduler {
 public:
  explicit Scheduler(Random& random) : random_(random) {}

  Time now() const { return now_; }
  /// The thread that runs; null outside of all threads.
  static SimulatedThread* current() { return current_; }

  /// Calls the function at this time, outside of all threads.
  void at(Time when, std::function<void()> action) {
    push({.when = std::max(when, now_), .action = std::move(action)});
  }

  void after(Time delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }
  SimulatedThread& start(SimulatedProcess& process, std::function<void()> body) {
    threads_.push_back(std::make_unique<SimulatedThread>(process, static_cast<int>(threads_.size()),
                                                         std::move(body)));
    auto& thread = *threads_.back();
    process.add(thread);
    push({.when = now_, .thread = &thread});
    return thread;
  }

  /// Runs until nothing remains to do. False if the time or the number of events is reached before.
  bool run(Time last) {
    while (!queue_.empty()) {
      if (queue_.front().when > last || events_ > most_events) return false;
      std::ranges::pop_heap(queue_, Later());
      const Event event = std::move(queue_.back());
      queue_.pop_back();
      if (event.thread != nullptr) {
        if (event.thread->fiber.ended() || event.thread->waits != event.wait) continue;
        if (event.thread->process.over()) continue;
        now_ = event.when;
        resume(*event.thread, event.wait);
      } else {
        now_ = event.when;
        event.action();
      }
    }
    return true;
  }

  static constexpr std::uint64_t most_events = 2'000'000;

  // Called by a simulated thread.
  /// Waits until notify() is called with the same address. False if the time is reached before.
  bool wait(const void* what, Time until = forever) {
    auto& thread = *current_;
    ++thread.waits;
    thread.notified = false;
    thread.awaited = what;
    if (what != nullptr) waiting_.push_back(&thread);
    if (until != forever) {
      push({.when = std::max(until, now_), .thread = &thread, .wait = thread.waits});
    }
    thread.fiber.suspend();
    return thread.notified;
  }

  void sleep(Time duration) { wait(nullptr, now_ + duration); }
  /// Gives the thread up for ever, after its process has died.
  [[noreturn]] void abandon_thread() {
    ++current_->waits;
    current_->fiber.suspend();
    std::abort();
  }

  void notify(const void* what, bool all = true) {
    for (std::size_t i = 0; i < waiting_.size();) {
      auto& thread = *waiting_[i];
      if (thread.awaited != what) {
        ++i;
        continue;
      }
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      thread.awaited = nullptr;
      thread.notified = true;
      push({.when = now_, .thread = &thread, .wait = thread.waits});
      if (!all) return;
    }
  }

  /// Continues the threads that were due while their process was frozen.
  void thaw(SimulatedProcess& process) {
    for (const auto& [thread, wait] : process.take_deferred()) {
      push({.when = now_, .thread = thread, .wait = wait});
    }
  }

  /// Adds an event to the trace, whose hash two runs of a seed must share.
  void trace(std::string_view what, std::int64_t first = 0, std::int64_t second = 0) {
    const auto add = [&](std::uint64_t value) {
      hash_ = (hash_ ^ value) * 0x100000001b3;
      hash_ ^= hash_ >> 29;
    };
    add(static_cast<std::uint64_t>(now_.count()));
    for (const char letter : what) add(static_cast<unsigned char>(letter));
    add(static_cast<std::uint64_t>(first));
    add(static_cast<std::uint64_t>(second));
    if (prints_ && what != "runs") {
      std::printf("%11.6f %.*s %lld %lld\n", static_cast<double>(now_.count()) * 1e-9,
                  static_cast<int>(what.size()), what.data(), static_cast<long long>(first),
                  static_cast<long long>(second));
    }
  }

  std::uint64_t trace_hash() const { return hash_; }
  void print_trace() { prints_ = true; }
  std::uint64_t events() const { return events_; }

 private:
  struct Event {
    Time when;
    std::uint64_t order = 0;            ///< among events of the same time
    SimulatedThread* thread = nullptr;  ///< that continues, or null
    std::uint64_t wait = 0;             ///< the thread's wait that ends
    std::function<void()> action = {};
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };

  void push(Event event) {
    // The low bits keep the order of insertion unique.
    event.order = random_.bits() << 32 | (events_++ & 0xffffffff);
    queue_.push_back(std::move(event));
    std::ranges::push_heap(queue_, Later());
  }

  void resume(SimulatedThread& thread, std::uint64_t wait) {
    auto& process = thread.process;
    if (process.frozen()) return process.defer(thread, wait);
    if (thread.awaited != nullptr) std::erase(waiting_, &thread);
    thread.awaited = nullptr;
    trace("runs", process.pid(), thread.number);
    current_ = &thread;
    thread.fiber.resume();
    current_ = nullptr;
    if (!thread.fiber.ended()) return;
    notify(&thread);
    process.remove(thread);
  }

  Random& random_;
  Time now_{};
  std::vector<Event> queue_;  ///< a heap
  std::vector<SimulatedThread*> waiting_;
  std::vector<std::unique_ptr<SimulatedThread>> threads_;
  std::uint64_t hash_ = 0xcbf29ce484222325;
  std::uint64_t events_ = 0;
  bool prints_ = false;

  static inline SimulatedThread* current_ = nullptr;
};

}  // namespace lockstep::testing
