#include "comm/mpi/mpi_rank_context.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "comm/mpi/library.h"
#include "comm/mpi/mpi_request.h"
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

using detail::concat;
using detail::nap;
using Clock = std::chrono::steady_clock;

/// How long a last message may take to leave.
constexpr auto patience = std::chrono::seconds(1);

/// A rank spins only while every rank of this host has a core of its own.
int spins(int local_size, const Options& options) {
  return detail::fit_cores(local_size, options.threads_per_rank, options.cores) ? 1000 : 0;
}

}  // namespace

MpiRankContext::MpiRankContext(const Options& options)
    : MpiRankContext(options, std::make_unique<MpiTransport>()) {}

MpiRankContext::MpiRankContext(const Options& options, std::unique_ptr<MpiTransport> transport)
    : RankContext({.backend = "mpi",
                   .rank = transport->rank(),
                   .timeout = options.timeout,
                   .policy = {.spins = spins(transport->local_size(), options)},
                   .has_mutex = true}),
      options_(options),
      transport_(std::move(transport)) {
  main_thread_only_ = Library::main_thread_only();
  left_.resize(static_cast<std::size_t>(size()));
  listen();
}

void MpiRankContext::remove(detail::BackendCommunicator& group) {
  RankContext::remove(group);
  if (groups().empty()) leave();
}

void MpiRankContext::expect_usable_thread() const {
  if (!main_thread_only_ || !Library::running() || Library::on_main_thread()) return;
  throw InvalidArgument(concat("mpi: rank ", rank(),
                               " is used outside the main thread; the program initialised MPI with "
                               "MPI_THREAD_FUNNELED"));
}

void MpiRankContext::listen() {
  transport_->receive(reinterpret_cast<std::byte*>(&heard_), sizeof heard_, MpiTransport::anyone,
                      notice_tag, [this](std::size_t) { hear(); });
}

void MpiRankContext::hear() {
  if (heard_.kind == Notice::Kind::left) {
    left_[static_cast<std::size_t>(heard_.rank)] = true;
  } else {
    record({.timeout = heard_.kind == Notice::Kind::timed_out,
            .text = heard_.text,
            .rank = heard_.rank_at_fault,
            .by_program = heard_.by_program},
           true);
  }
  listen();
}

void MpiRankContext::attempt(const std::function<void()>& call) noexcept {
  try {
    call();
  } catch (const std::exception& error) {
    fail_within({.text = concat("rank ", rank(), ": ", error.what()), .rank = rank()});
  }
}

bool MpiRankContext::advance() {
  bool news = false;
  if (!failed()) {
    attempt([&] {
      if (!Library::running()) throw CommError("MPI was ended while the world was in use");
      news = transport_->progress();
      for (std::size_t i = 0; i < groups().size() && !failed(); ++i) groups()[i]->poll();
    });
  }
  if (failed()) spread();
  return news;
}

void MpiRankContext::check(const detail::BackendRequest& operation) {
  const auto gone = [&] {
    const auto missing = operation.missing();
    const auto found = std::find_if(missing.begin(), missing.end(), [&](int rank) {
      return left_[static_cast<std::size_t>(rank)];
    });
    return found == missing.end() ? -1 : *found;
  };
  if (gone() < 0) return;
  // What the rank sent before it left is here now, and may need several polls to be used.
  while (gone() >= 0 && !operation.complete() && !failed() && poll()) {
  }
  const int rank = gone();
  if (operation.complete() || failed() || rank < 0) return;
  fail_within(
      {.text = concat("rank ", rank, " left the world before ", operation.operation().label()),
       .rank = rank});
  spread();
  throw_failure(operation.where());
}

void MpiRankContext::record(const Failure& failure, bool of_others) noexcept {
  if (!failure_.record(failure, of_others)) return;
  Library::abandon();
  if (!of_others && control_) control_->fail(failure);
}

void MpiRankContext::record(detail::FailureKind /*kind*/, const Failure& failure) noexcept {
  record(failure, false);
}

void MpiRankContext::watch(std::vector<control::Member> others) {
  control_.emplace(std::move(others), [this](const Failure& failure) { record(failure, true); });
}

void MpiRankContext::fail(detail::FailureKind kind, const Failure& failure) noexcept {
  if (in_child()) return;
  RankContext::fail(kind, failure);
  spread_unless_in_use();
}

void MpiRankContext::fail(const Failure& failure) noexcept {
  record(failure, false);
  spread_unless_in_use();
}

void MpiRankContext::spread_unless_in_use() noexcept {
  // A thread that is inside tells the others when it polls next; one that advances lets this in.
  try {
    const Use use(*this);
    spread();
  } catch (const InvalidArgument&) {
  }
}

void MpiRankContext::spread() noexcept {
  if (std::exchange(stopped_, true)) return;
  // With the control connection all ranks have the cause already: MPI may wait long for a dead
  // rank.
  if (!failure_.of_others() && !control_) {
    const auto failure = failure_.failure();
    Notice notice{};
    notice.kind = failure.timeout ? Notice::Kind::timed_out : Notice::Kind::failed;
    notice.rank_at_fault = failure.rank;
    notice.by_program = failure.by_program;
    failure.text.copy(notice.text, sizeof notice.text - 1);
    notice.rank = rank();
    tell_all(notice);
  }
  transport_->stop();
}

void MpiRankContext::leave() noexcept {
  if (std::exchange(gone_, true) || failed()) return;
  Notice notice{};
  notice.kind = Notice::Kind::left;
  notice.rank = rank();
  tell_all(notice);
}

void MpiRankContext::part() noexcept {
  stop_thread();
  const auto lock = hold();
  leave();
  left_[static_cast<std::size_t>(rank())] = true;
  const auto present = [&] { return std::find(left_.begin(), left_.end(), false) != left_.end(); };
  attempt([&] {
    while (present() && !failed()) {
      if (!transport_->progress()) std::this_thread::sleep_for(nap);
    }
  });
  transport_->stop();
  if (control_ && !failed()) control_->leave();
}

void MpiRankContext::tell_all(const Notice& notice) noexcept {
  try {
    if (!Library::running()) return;
    // Kept after the last look: MPI may still read it.
    const auto kept = std::make_shared<Notice>(notice);
    const auto waiting = std::make_shared<int>(0);
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      ++*waiting;
      transport_->send(reinterpret_cast<const std::byte*>(kept.get()), sizeof *kept, other,
                       notice_tag, [kept, waiting](std::size_t) { --*waiting; });
    }
    const auto until = Clock::now() + patience;
    while (*waiting > 0 && Clock::now() < until) {
      if (!transport_->progress()) ::sched_yield();
    }
  } catch (const std::exception& error) {
    log::warn(concat("mpi: rank ", rank(), " could not tell the others: ", error.what()));
  }
}

}  // namespace lockstep::mpi
