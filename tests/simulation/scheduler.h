#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tests/random_programs/random.h"
#include "tests/simulation/fiber.h"

namespace lockstep::testing {

using random_programs::Random;

class SimulatedProcess;

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
  void at(Time when, std::function<void()> action);
  void after(Time delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }
  SimulatedThread& start(SimulatedProcess& process, std::function<void()> body);
  /// Runs until nothing remains to do. False if the time or the number of events is reached before.
  bool run(Time last);
  static constexpr std::uint64_t most_events = 2'000'000;

  // Called by a simulated thread.
  /// Waits until notify() is called with the same address. False if the time is reached before.
  bool wait(const void* what, Time until = forever);
  void sleep(Time duration) { wait(nullptr, now_ + duration); }
  /// Gives the thread up for ever, after its process has died.
  [[noreturn]] void abandon_thread();

  void notify(const void* what, bool all = true);
  /// Continues the threads that were due while their process was frozen.
  void thaw(SimulatedProcess& process);

  /// Adds an event to the trace, whose hash two runs of a seed must share.
  void trace(std::string_view what, std::int64_t first = 0, std::int64_t second = 0);
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

  void push(Event event);
  void resume(SimulatedThread& thread, std::uint64_t wait);

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
