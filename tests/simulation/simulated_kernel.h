#pragma once

#include "tests/simulation/scheduler.h"
#include "tests/simulation/simulated_network.h"
#include "tests/simulation/simulated_process.h"

namespace lockstep::testing {

/// The system calls of one world. The linker directs the calls of the shipped code here (--wrap in
/// tests/CMakeLists.txt); outside of simulated threads they reach the C library.
class SimulatedKernel {
 public:
  struct Settings {
    int hosts = 1;
    SimulatedNetwork::Settings network = {};
    int preempt_percent = 0;                            ///< calls after which another thread runs
    Time longest_delay = std::chrono::milliseconds(1);  ///< of a thread that could run
    Time longest_pause = std::chrono::milliseconds(8);  ///< of a thread that polls without news
  };

  SimulatedKernel(std::uint64_t seed, const Settings& settings)
      : random_(seed),
        settings_(settings),
        scheduler_(random_),
        network_(scheduler_, random_, settings.hosts, settings.network) {}

  /// The kernel that serves the running simulated thread; null outside of simulated threads.
  static SimulatedKernel* current() { return Scheduler::current() == nullptr ? nullptr : active; }
  static inline SimulatedKernel* active = nullptr;
  /// The same after enter().
  static SimulatedKernel* entered() {
    auto* kernel = current();
    if (kernel != nullptr) kernel->enter();
    return kernel;
  }

  Random& random() { return random_; }
  Scheduler& scheduler() { return scheduler_; }
  SimulatedNetwork& network() { return network_; }

  SimulatedProcess& start(int host, std::function<void()> main) {
    processes_.push_back(
        std::make_unique<SimulatedProcess>(1000 + static_cast<int>(processes_.size()), host));
    auto& process = *processes_.back();
    scheduler_.start(process, [this, &process, body = std::move(main)] {
      body();
      scheduler_.trace("ends", process.pid());
      process.end(true);
    });
    return process;
  }

  /// Ends the process, as SIGKILL does.
  void kill(SimulatedProcess& process) {
    if (process.over()) return;
    scheduler_.trace("is killed", process.pid());
    process.end(true);
  }

  void lose_power(int host) {
    scheduler_.trace("loses power", host);
    network_.lose_power(host);
    for (const auto& process : processes_) {
      if (process->host() == host && !process->over()) process->end(false);
    }
  }

  void thaw(SimulatedProcess& process) {
    if (!process.frozen()) return;
    scheduler_.trace("is thawed", process.pid());
    process.thaw();
    scheduler_.thaw(process);
  }

  // Called in a simulated thread.
  static SimulatedProcess& process() { return Scheduler::current()->process; }
  /// Begins a call: counts it for faults, and may let another thread run.
  void enter() {
    auto& own = process();
    own.count_call();
    if (own.over()) scheduler_.abandon_thread();
    // A wait of a frozen process ends when the process continues. Time passes for a thread that
    // never waits.
    if (own.frozen() || own.calls() % 256 == 0 || random_.chance(settings_.preempt_percent)) {
      scheduler_.sleep(random_time(settings_.longest_delay));
    }
  }

  /// A random time below the limit.
  Time random_time(Time limit) {
    return Time(static_cast<std::int64_t>(
        random_.bits() % static_cast<std::uint64_t>(std::max<std::int64_t>(limit.count(), 1))));
  }

  /// Sleeps for a poll, longer each time while the process has no news.
  void pause(Time least) {
    auto& own = process();
    auto& thread = *Scheduler::current();
    if (std::exchange(own.news_read, own.news) != own.news) thread.pause = Time(0);
    const auto pause = std::exchange(
        thread.pause,
        std::min(2 * thread.pause + std::chrono::microseconds(100), settings_.longest_pause));
    scheduler_.sleep(least + pause + random_time(settings_.longest_delay / 4));
  }

  /// Waits until a file of this process may have changed.
  bool wait_for_files(Time until) { return scheduler_.wait(&process(), until); }

 private:
  Random random_;
  Settings settings_;
  Scheduler scheduler_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<SimulatedProcess>> processes_;
};

}  // namespace lockstep::testing
