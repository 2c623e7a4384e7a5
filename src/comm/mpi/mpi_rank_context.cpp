#include "comm/mpi/mpi_rank_context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "comm/mpi/library.h"
#include "comm/mpi/mpi_request.h"
#include "comm/waiting.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How a world over MPI fails]
// No memory is visible to all ranks. A rank fails by an exception, a mismatch or a wait that lasted
// too long. It then sends a notice to every other rank, which receives it when it polls. A rank
// raises the first cause that reaches it. All members of a group find a mismatch by themselves,
// with the same message.
// A rank that leaves also sends a notice, after all its other messages, so that a rank that still
// waits for it finds out. After a failure and its notices a rank starts nothing more in MPI, which
// may wait for ever.
// MPI does not report ranks and links that die. Where there are several hosts, every rank has a
// control connection beside MPI, which detects them. It also carries failures in MPI's place. Its
// thread only records failures; the next thread that polls calls MPI.

namespace lockstep::inline v0_2::mpi {
namespace {

using detail::awake;
using detail::concat;
using detail::nap;
using Clock = std::chrono::steady_clock;

/// How long a last message may take to leave.
constexpr auto patience = std::chrono::seconds(1);

}  // namespace

RankContext::RankContext(const Options& options) : options_(options) {
  fits_ = detail::fit_cores(transport_.local_size(), options.threads_per_rank, options.cores);
  main_thread_only_ = Library::main_thread_only();
  left_.resize(static_cast<std::size_t>(size()));
  listen();
}

void RankContext::remove(Pollable& group) {
  std::erase(groups_, &group);
  if (groups_.empty()) leave();
}

RankContext::Use::Use(RankContext& context)
    : Entrance::Use(checked(context), "mpi", context.rank()), context_(context) {}

RankContext::Use::~Use() {
  // Another thread that failed meanwhile has left it to this one.
  if (context_.failed()) context_.spread();
}

RankContext& RankContext::Use::checked(RankContext& context) {
  if (context.main_thread_only_ && !Library::on_main_thread()) {
    throw InvalidArgument(concat("mpi: rank ", context.rank(),
                                 " is used outside the main thread; the program initialised MPI "
                                 "with MPI_THREAD_FUNNELED"));
  }
  return context;
}

void RankContext::listen() {
  transport_.receive(reinterpret_cast<std::byte*>(&heard_), sizeof heard_, MpiTransport::anyone,
                     notice_tag, [this](std::size_t) { hear(); });
}

void RankContext::hear() {
  if (heard_.kind == Notice::Kind::left) {
    left_[static_cast<std::size_t>(heard_.rank)] = true;
  } else {
    record({.timeout = heard_.kind == Notice::Kind::timed_out, .text = heard_.text}, Origin::heard);
  }
  listen();
}

void RankContext::attempt(const std::function<void()>& call) noexcept {
  try {
    call();
  } catch (const std::exception& error) {
    record({.text = concat("rank ", rank(), ": ", error.what())});
  }
}

bool RankContext::advance() {
  bool news = false;
  if (!failed()) {
    attempt([&] {
      if (!Library::running()) throw CommError("MPI was ended while the world was in use");
      news = transport_.progress();
      for (std::size_t i = 0; i < groups_.size() && !failed(); ++i) groups_[i]->poll();
    });
  }
  if (failed()) spread();
  return news;
}

bool RankContext::poll() {
  const bool news = advance();
  for (auto* group : groups_) group->let_go(complete());
  return news;
}

detail::ProgressThread::Outcome RankContext::advance_alone() {
  // Without an operation MPI is not called: the program may be about to end it.
  const auto under_way = [&] {
    return !failed() &&
           std::ranges::any_of(groups_, [](const auto* group) { return group->under_way(); });
  };
  if (!under_way()) {
    if (failed()) spread();
    return {.news = false, .under_way = false};
  }
  const bool news = advance();
  return {.news = news, .under_way = under_way()};
}

void RankContext::wait(const MpiRequest& operation) {
  constexpr int spins = 1000;
  const auto limit = detail::wait_limit(operation.operation(), options_.timeout);
  detail::Deadline deadline(limit);
  auto last_news = Clock::now();
  for (int idle = 0;;) {
    idle = poll() ? 0 : idle + 1;
    if (operation.complete()) return;
    if (failed()) throw_failure(operation.where());
    if (fits_ && idle % spins != 0) {
      detail::relax();
      continue;
    }
    const auto now = Clock::now();
    if (idle == 0) last_news = now;
    check(operation);
    check_time(operation, deadline, limit);
    if (now - last_news > awake) {
      std::this_thread::sleep_for(nap);
    } else {
      ::sched_yield();
    }
  }
}

void RankContext::check(const MpiRequest& operation) {
  const auto gone = [&] {
    const auto missing = operation.missing();
    const auto found = std::find_if(missing.begin(), missing.end(), [&](int rank) {
      return left_[static_cast<std::size_t>(rank)];
    });
    return found == missing.end() ? -1 : *found;
  };
  if (gone() < 0) return;
  // All that the rank sent before it left is here now.
  poll();
  const int rank = gone();
  if (operation.complete() || failed() || rank < 0) return;
  record({.text = concat("rank ", rank, " left the world before ", operation.operation().label())});
  spread();
  throw_failure(operation.where());
}

void RankContext::check_time(const MpiRequest& operation, detail::Deadline& deadline,
                             std::chrono::milliseconds limit) {
  if (!deadline.passed()) return;
  record({.timeout = true,
          .text = concat(operation.operation().label(), " waited ", limit.count() / 1000.0,
                         " s for ", detail::awaited(operation.missing()))});
  spread();
  throw_failure(operation.where());
}

void RankContext::record(const Failure& failure, Origin origin) noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    failure_ = failure;
    origin_ = origin;
  }
  failed_.store(true, std::memory_order_release);
  Library::abandon();
  if (origin == Origin::here && control_) control_->fail(failure);
}

void RankContext::watch(std::vector<control::Member> others) {
  control_.emplace(std::move(others),
                   [this](const Failure& failure) { record(failure, Origin::heard); });
}

void RankContext::fail(const Failure& failure) noexcept {
  record(failure);
  // A thread that is inside tells the others when it polls next; one that advances lets this in.
  try {
    const Use use(*this);
    spread();
  } catch (const InvalidArgument&) {
  }
}

void RankContext::spread() noexcept {
  if (std::exchange(stopped_, true)) return;
  // With the control connection all ranks have the cause already: MPI may wait long for a dead
  // rank.
  if (origin_ == Origin::here && !control_) {
    Notice notice{};
    {
      const std::lock_guard lock(failure_mutex_);
      notice.kind = failure_->timeout ? Notice::Kind::timed_out : Notice::Kind::failed;
      failure_->text.copy(notice.text, sizeof notice.text - 1);
    }
    notice.rank = rank();
    tell_all(notice);
  }
  transport_.stop();
}

void RankContext::leave() noexcept {
  if (std::exchange(gone_, true) || failed()) return;
  Notice notice{};
  notice.kind = Notice::Kind::left;
  notice.rank = rank();
  tell_all(notice);
}

void RankContext::part() noexcept {
  stop_thread();
  const auto lock = hold();
  leave();
  left_[static_cast<std::size_t>(rank())] = true;
  const auto present = [&] { return std::find(left_.begin(), left_.end(), false) != left_.end(); };
  attempt([&] {
    while (present() && !failed()) {
      if (!transport_.progress()) std::this_thread::sleep_for(nap);
    }
  });
  transport_.stop();
  if (control_ && !failed()) control_->leave();
}

void RankContext::tell_all(const Notice& notice) noexcept {
  try {
    if (!Library::running()) return;
    // Kept after the last look: MPI may still read it.
    const auto kept = std::make_shared<Notice>(notice);
    const auto waiting = std::make_shared<int>(0);
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      ++*waiting;
      transport_.send(reinterpret_cast<const std::byte*>(kept.get()), sizeof *kept, other,
                      notice_tag, [kept, waiting](std::size_t) { --*waiting; });
    }
    const auto until = Clock::now() + patience;
    while (*waiting > 0 && Clock::now() < until) {
      if (!transport_.progress()) ::sched_yield();
    }
  } catch (const std::exception& error) {
    log::warn(concat("mpi: rank ", rank(), " could not tell the others: ", error.what()));
  }
}

void RankContext::throw_failure(std::string_view where) {
  Failure failure;
  {
    const std::lock_guard lock(failure_mutex_);
    failure = *failure_;
  }
  const std::string text = met_failure_.text(where, failure.text);
  log::warn(text);
  if (failure.timeout) throw TimeoutError(text);
  throw CommError(text);
}

}  // namespace lockstep::mpi
