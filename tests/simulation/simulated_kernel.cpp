#include "tests/simulation/simulated_kernel.h"

#include <algorithm>
#include <utility>

namespace lockstep::testing {

SimulatedProcess& SimulatedKernel::start(int host, std::function<void()> main) {
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

void SimulatedKernel::kill(SimulatedProcess& process) {
  if (process.over()) return;
  scheduler_.trace("is killed", process.pid());
  process.end(true);
}

void SimulatedKernel::lose_power(int host) {
  scheduler_.trace("loses power", host);
  network_.lose_power(host);
  for (const auto& process : processes_) {
    if (process->host() == host && !process->over()) process->end(false);
  }
}

void SimulatedKernel::thaw(SimulatedProcess& process) {
  if (!process.frozen()) return;
  scheduler_.trace("is thawed", process.pid());
  process.thaw();
  scheduler_.thaw(process);
}

Time SimulatedKernel::random_time(Time limit) {
  return Time(static_cast<std::int64_t>(
      random_.bits() % static_cast<std::uint64_t>(std::max<std::int64_t>(limit.count(), 1))));
}

void SimulatedKernel::enter() {
  auto& own = process();
  own.count_call();
  if (own.over()) scheduler_.abandon_thread();
  // A wait of a frozen process ends when the process continues. Time passes for a thread that
  // never waits.
  if (own.frozen() || own.calls() % 256 == 0 || random_.chance(settings_.preempt_percent)) {
    scheduler_.sleep(random_time(settings_.longest_delay));
  }
}

void SimulatedKernel::pause(Time least) {
  auto& own = process();
  auto& thread = *Scheduler::current();
  if (std::exchange(own.news_read, own.news) != own.news) thread.pause = Time(0);
  const auto pause = std::exchange(
      thread.pause,
      std::min(2 * thread.pause + std::chrono::microseconds(100), settings_.longest_pause));
  scheduler_.sleep(least + pause + random_time(settings_.longest_delay / 4));
}

}  // namespace lockstep::testing
