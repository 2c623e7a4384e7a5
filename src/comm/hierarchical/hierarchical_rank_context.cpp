#include "comm/hierarchical/hierarchical_rank_context.h"

#include <sched.h>

#include <thread>

#include "comm/control/failure.h"
#include "comm/hierarchical/hierarchical_communicator.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {
namespace {

using detail::awake;
using detail::concat;
using detail::nap;
using Clock = std::chrono::steady_clock;

constexpr auto precedence = std::chrono::milliseconds(200);
constexpr unsigned polls_between_looks = 8;

}  // namespace

template <class Fn>
void RankContext::attempt(const Fn& fn) noexcept {
  try {
    fn();
  } catch (const std::exception& error) {
    fail(error);
  }
}

void RankContext::advance() noexcept {
  attempt([&] {
    for (std::size_t i = 0; i < groups_.size() && !failed(); ++i) groups_[i]->poll();
    // Operations ask the backends that they are under way in only, and failures come by either.
    if (++polls_ % polls_between_looks != 0) return;
    over_mpi_->look();
    of_host_->look();
  });
}

void RankContext::poll() noexcept {
  advance();
  for (auto* group : groups_) group->let_go(complete());
}

detail::ProgressThread::Outcome RankContext::advance_alone() noexcept {
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

void RankContext::wait(const HierarchicalRequest& operation) {
  constexpr int spins = 1000;
  detail::Deadline deadline(detail::wait_limit(operation.operation(), timeout_));
  auto looked = Clock::now();
  for (int turn = 1;; ++turn) {
    poll();
    if (operation.complete()) return;
    if (failed()) throw_failure(operation.where());
    if (fits_ && turn % spins != 0) {
      detail::relax();
      continue;
    }
    const auto now = Clock::now();
    const auto waited = deadline.elapsed();
    check_time(operation, waited);
    if (waited < awake) {
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

void RankContext::check_time(const HierarchicalRequest& operation, Clock::duration waited) {
  const auto limit = detail::wait_limit(operation.operation(), timeout_);
  // An operation in a later stage may wait for a rank that itself waits in an earlier stage. Only
  // the earlier stage knows the rank at fault, so its wait times out first.
  const auto grace = static_cast<const StagedRequest&>(operation).stages_begun() * precedence;
  if (waited < limit + grace) return;
  fail(true, concat(operation.operation().label(), " waited ", limit.count() / 1000.0, " s for ",
                    detail::awaited(operation.missing())));
  throw_failure(operation.where());
}

void RankContext::check(const HierarchicalRequest&) noexcept {
  attempt([&] {
    for (auto* group : groups_) group->check();
  });
}

void RankContext::fail(const std::exception& error) noexcept {
  const auto failure = control::failure_of(error);
  fail(failure.timeout, failure.text);
}

void RankContext::fail(bool timeout, std::string_view text) noexcept {
  if (in_child()) return;
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

void RankContext::throw_failure(std::string_view where) {
  std::string text;
  {
    const std::lock_guard lock(failure_mutex_);
    text = met_failure_.text(where, failure_);
  }
  for (auto* group : groups_) group->drop(complete());
  log::warn(text);
  if (timed_out_) throw TimeoutError(text);
  throw CommError(text);
}

}  // namespace lockstep::hierarchical
