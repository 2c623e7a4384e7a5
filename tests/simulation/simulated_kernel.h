#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

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

  SimulatedProcess& start(int host, std::function<void()> main);

  /// Ends the process, as SIGKILL does.
  void kill(SimulatedProcess& process);
  void lose_power(int host);
  void thaw(SimulatedProcess& process);

  // Called in a simulated thread.
  static SimulatedProcess& process() { return Scheduler::current()->process; }
  /// Begins a call: counts it for faults, and may let another thread run.
  void enter();
  /// A random time below the limit.
  Time random_time(Time limit);
  /// Sleeps for a poll, longer each time while the process has no news.
  void pause(Time least);
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
