#include "lockstep/comm/hierarchical/endpoint.h"

#include <sched.h>

#include <thread>

#include "lockstep/comm/control/failure.h"
#include "lockstep/comm/hierarchical/hierarchical_communicator.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::hierarchical {
namespace {

using detail::awake;
using detail::concat;
using detail::nap;
using Clock = std::chrono::steady_clock;

constexpr auto precedence = std::chrono::milliseconds(200);
constexpr unsigned polls_between_looks = 8;

}  // namespace

template <class Fn>
void Endpoint::attempt(const Fn& fn) noexcept {
  try {
    fn();
  } catch (const std::exception& error) {
    fail(error);
  }
}

void Endpoint::advance() noexcept {
  attempt([&] {
    for (std::size_t i = 0; i < groups_.size() && !failed(); ++i) groups_[i]->poll();
    // Operations ask the backends that they are under way in only, and failures come by either.
    if (++polls_ % polls_between_looks != 0) return;
    over_mpi_->look();
    of_host_->look();
  });
}

void Endpoint::poll() noexcept {
  advance();
  for (auto* group : groups_) group->let_go(complete());
}

detail::ProgressThread::Outcome Endpoint::advance_alone() noexcept {
  const auto stages_left = [&] {
    std::size_t stages = 0;
    for (const auto* group : groups_) stages += failed() ? 0 : group->stages_left();
    return stages;
  };
  const auto before = stages_left();
  if (before == 0) return {.news = false, .under_way = false};
  advance();
  const auto after = stages_left();
  return {.news = after<before, .under_way = after> 0};
}

void Endpoint::wait(const InFlight& operation) {
  constexpr int spins = 1000;
  const auto begin = Clock::now();
  auto looked = begin;
  for (int turn = 1;; ++turn) {
    poll();
    if (operation.complete()) return;
    if (failed()) throw_failure(operation.where());
    if (fits_ && turn % spins != 0) {
      detail::relax();
      continue;
    }
    const auto now = Clock::now();
    check_time(operation, now - begin);
    if (now - begin < awake) {
      ::sched_yield();
      continue;
    }
    if (now - looked > awake) {
      looked = now;
      check(operation);
    }
    std::this_thread::sleep_for(nap);
  }
}

void Endpoint::check_time(const InFlight& operation, Clock::duration waited) {
  const auto limit = detail::wait_limit(operation.operation(), timeout_);
  // Who waits in a later stage may wait for somebody who waits, too: those in earlier ones, who
  // know whom for, speak first.
  const auto grace = static_cast<const Flight&>(operation).stages_begun() * precedence;
  if (waited < limit + grace) return;
  fail(true, concat(operation.operation().label(), " waited ", limit.count() / 1000.0, " s for ",
                    detail::awaited(operation.missing())));
  throw_failure(operation.where());
}

void Endpoint::check(const InFlight&) noexcept {
  attempt([&] {
    for (auto* group : groups_) group->check();
  });
}

void Endpoint::fail(const std::exception& error) noexcept {
  const auto failure = control::failure_of(error);
  fail(failure.timeout, failure.text);
}

void Endpoint::fail(bool timeout, std::string_view text) noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed_.exchange(true)) return;
    timed_out_ = timeout;
    try {
      failure_ = text;
    } catch (const std::bad_alloc&) {
      // Nameless, then.
    }
  }
  for (auto* world : {of_host_.get(), over_mpi_.get()}) {
    timeout ? world->fail_by_timeout(text) : world->fail(text);
  }
}

void Endpoint::throw_failure(std::string_view where) {
  std::string text;
  {
    const std::lock_guard lock(failure_mutex_);
    text = concat(where, ": ", failure_);
  }
  for (auto* group : groups_) group->drop(complete());
  log::warn(text);
  if (timed_out_) throw TimeoutError(text);
  throw CommError(text);
}

}  // namespace lockstep::hierarchical
