#include "tests/simulation/scheduler.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/simulation/simulated_process.h"

namespace lockstep::testing {

void Scheduler::push(Event event) {
  // The low bits keep the order of insertion unique.
  event.order = random_.bits() << 32 | (events_++ & 0xffffffff);
  queue_.push_back(std::move(event));
  std::ranges::push_heap(queue_, Later());
}

void Scheduler::at(Time when, std::function<void()> action) {
  push({.when = std::max(when, now_), .action = std::move(action)});
}

SimulatedThread& Scheduler::start(SimulatedProcess& process, std::function<void()> body) {
  threads_.push_back(std::make_unique<SimulatedThread>(process, static_cast<int>(threads_.size()),
                                                       std::move(body)));
  auto& thread = *threads_.back();
  process.add(thread);
  push({.when = now_, .thread = &thread});
  return thread;
}

bool Scheduler::run(Time last) {
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

void Scheduler::resume(SimulatedThread& thread, std::uint64_t wait) {
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

bool Scheduler::wait(const void* what, Time until) {
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

void Scheduler::abandon_thread() {
  ++current_->waits;
  current_->fiber.suspend();
  std::abort();
}

void Scheduler::notify(const void* what, bool all) {
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

void Scheduler::thaw(SimulatedProcess& process) {
  for (const auto& [thread, wait] : process.take_deferred()) {
    push({.when = now_, .thread = thread, .wait = wait});
  }
}

void Scheduler::trace(std::string_view what, std::int64_t first, std::int64_t second) {
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

}  // namespace lockstep::testing
