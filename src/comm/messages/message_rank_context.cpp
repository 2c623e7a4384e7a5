#include "comm/messages/message_rank_context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "comm/cost/cost.h"
#include "comm/flight/flight_record.h"
#include "core/environment.h"
#include "core/log.h"
#include "core/numeric/digest.h"
#include "core/system/crash_handler.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How a world over messages fails]
// Over TCP, and over MPI between hosts, a control connection (control.cpp) detects a dead rank and
// carries failures: its thread calls record(), and RankContext raises what it recorded.
// No memory is visible to all ranks. A world fails by an exception, a mismatch or a timeout on one
// rank, or on several at the same time, of different causes. Rank 0 decides which one is the first:
// the one that it has first. A rank that fails sends its cause to rank 0, which sends the first to
// every rank. A rank receives a notice when it polls. If rank 0 does not poll within a second, the
// rank that fails sends its own cause to every rank. If rank 0 has left, it does so at once.
// All members of a group detect a mismatch themselves, with the same error text.
// A rank that leaves also sends a notice, after all its other messages, so that a rank that still
// waits for it detects this. After a failure and its notices, a rank sends nothing more: over MPI
// it might block for ever. MPI does not report ranks and links that fail. Where there are control
// connections, they carry failures instead of the network, and rank 0 decides there, too.

namespace lockstep::inline v0_2::messages {
namespace {

using detail::concat;
using detail::poll_pause;
using Clock = std::chrono::steady_clock;

/// Longest time to send the last messages.
constexpr auto send_timeout = std::chrono::seconds(1);
/// Longest time until rank 0 answers with the first failure.
constexpr auto answer_timeout = std::chrono::seconds(1);

}  // namespace

control::Settings control_settings(const Options& options, int rank, int size) {
  const auto network = detail::this_host();
  return {.rank = rank,
          .size = size,
          .host = options.host.empty() ? detail::host_name() : options.host,
          .network = detail::digest(std::as_bytes(std::span(network))),
          .interface = options.interface,
          .timeout = options.timeout,
          .heartbeat = options.heartbeat,
          .stall_warning = Environment::get().stall_warning};
}

MessageRankContext::MessageRankContext(const Options& options, std::unique_ptr<Network> network)
    : RankContext({.backend = network->name(),
                   .rank = network->rank(),
                   .timeout = options.timeout,
                   // A rank spins only if every rank of this host has a core of its own.
                   .policy = {.spins = detail::fit_cores(network->local_size(),
                                                         options.threads_per_rank, options.cores)
                                           ? 1000
                                           : 0},
                   .has_mutex = true}),
      CrashListener(Phase::notify),
      options_(options),
      network_(std::move(network)) {
  left_.resize(static_cast<std::size_t>(size()));
  set_last_group(agreement_group);
  receive_notice();
}

void MessageRankContext::remove(detail::BackendCommunicator& group) {
  RankContext::remove(group);
  if (groups().empty()) leave();
}

bool MessageRankContext::sleep_unless(detail::Condition& over, std::chrono::nanoseconds longest) {
  if (over.is_ready()) return true;
  network_->sleep(longest);
  return false;
}

void MessageRankContext::receive_notice() {
  const auto on_notice = [this](std::size_t) {
    if (notice_.kind != Notice::Kind::failed) {
      left_[static_cast<std::size_t>(notice_.rank)] = notice_.kind;
    } else {
      record({.kind = notice_.failure, .rank = notice_.rank_at_fault, .text = notice_.text},
             rank() != 0);  // rank 0 keeps the failure that it has first
    }
    receive_notice();
  };
  network_->receive(reinterpret_cast<std::byte*>(&notice_), sizeof notice_, Network::anyone,
                    notice_tag, on_notice);
}

Failure MessageRankContext::failure_by(const std::exception& error) const {
  if (const auto* mismatch = dynamic_cast<const Mismatch*>(&error)) {
    return {.kind = Failure::Kind::mismatch, .rank = mismatch->rank(), .text = mismatch->what()};
  }
  return {.rank = rank(), .text = concat("rank ", rank(), ": ", error.what())};
}

bool MessageRankContext::advance() {
  bool news = false;
  if (!failed()) {
    attempt([&] {
      if (!network_->is_running())
        throw CommError(concat(network_->name(), " was ended while the world was in use"));
      news = network_->progress();
    });
    RankContext::advance();
  }
  if (failed()) propagate_failure();
  return news;
}

void MessageRankContext::check(const detail::BackendRequest& operation) {
  const auto gone = [&] {
    const auto missing = operation.missing();
    const auto found = std::ranges::find_if(missing, [&](int rank) { return has_left(rank); });
    return found == missing.end() ? -1 : *found;
  };
  if (gone() < 0) return;
  // Messages that the rank sent before it left have arrived. Processing them may need several
  // polls.
  while (gone() >= 0 && !operation.complete() && !failed() && poll()) {
  }
  const int rank = gone();
  if (operation.complete() || failed() || rank < 0) return;
  const bool threw = left_[static_cast<std::size_t>(rank)] == Notice::Kind::threw;
  const auto& announced = operation.operation().announced();
  const auto& source = announced.issue.source;
  record({.kind = Failure::Kind::left,
          .rank = rank,
          .text = concat("rank ", rank, " left the world", threw ? " (by an exception)" : "",
                         " before ", announced.label(), in_parentheses(source), operation.note(),
                         threw ? "" : detail::remedy_of_leaving(source))});
  propagate_failure();
  throw_failure(operation.where());
}

void MessageRankContext::record(const Failure& failure, bool is_agreed) noexcept {
  if (!is_agreed && control_ && !failed()) return record(control_->fail(failure), true);
  if (failure_record().record(failure, is_agreed)) network_->abandon();
  network_->interrupt();  // a rank that sleeps raises the failure now
}

void MessageRankContext::watch(std::vector<control::Member> others, const std::string& host) {
  control::StatusSource status{
      .rank = rank(),
      .host = host,
      .socket = control::status_socket_name(::getpid()),
      .records = [job = detail::flight_job()] { return detail::copies_of_flight_records(job); }};
  control_.emplace(
      std::move(others), [this](const Failure& failure) { record(failure, true); },
      std::move(status));
}

void MessageRankContext::on_crash(const detail::Crash& crash) noexcept {
  if (control_) control_->fail_by_crash(detail::crash_text(rank(), crash).view(), rank());
}

void MessageRankContext::fail(const Failure& failure) noexcept {
  if (in_child()) return;
  RankContext::fail(failure);
  propagate_unless_in_use();
}

void MessageRankContext::end_by(const Failure& failure) noexcept {
  record(failure);
  propagate_unless_in_use();
}

void MessageRankContext::propagate_unless_in_use() noexcept {
  // If another thread holds the guard, it sends the failure when it polls next.
  try {
    const CallGuard guard(*this);
    propagate_failure();
  } catch (const InvalidArgument&) {
  }
}

void MessageRankContext::propagate_failure() noexcept {
  if (std::exchange(stopped_, true)) return;
  // The control connections have sent the cause already. The network might block for long on
  // a dead rank.
  if (!control_) agree_on_failure();
  network_->stop();
}

void MessageRankContext::agree_on_failure() noexcept {
  if (rank() != 0 && failure_record().is_agreed()) return;
  const auto failure = failure_record().failure();
  Notice notice{.kind = Notice::Kind::failed,
                .rank = rank(),
                .rank_at_fault = failure.rank,
                .failure = failure.kind,
                .text = {}};
  failure.text.copy(notice.text, sizeof notice.text - 1);
  if (rank() != 0 && !has_left(0)) {
    send(notice, 0, 1);
    await_answer();
    if (failure_record().is_agreed()) return;
  }
  send(notice, 0, size());
}

void MessageRankContext::await_answer() noexcept {
  const auto until = Clock::now() + answer_timeout;
  try {
    while (network_->is_running() && !failure_record().is_agreed() && Clock::now() < until) {
      if (!network_->progress()) std::this_thread::sleep_for(poll_pause);
    }
  } catch (const std::exception& error) {
    log::warn(
        concat(network_->name(), ": rank ", rank(), " has no answer of rank 0: ", error.what()));
  }
}

void MessageRankContext::leave() noexcept {
  if (std::exchange(has_left_, true) || failed()) return;
  Notice notice{};
  notice.kind = std::uncaught_exceptions() > 0 ? Notice::Kind::threw : Notice::Kind::left;
  notice.rank = rank();
  send(notice, 0, size());
  if (control_ && !network_->ends_together()) control_->announce_end();
}

bool MessageRankContext::present() const {
  return std::ranges::any_of(left_, [](const auto& notice) { return !notice; });
}

bool MessageRankContext::end_if_left() noexcept {
  const auto guard = lock();
  if (!has_left_) return false;
  attempt([&] {
    while (!failed() && network_->progress()) {
    }
  });
  left_[static_cast<std::size_t>(rank())] = Notice::Kind::left;
  if (present() && !failed()) return false;
  end_network();
  return true;
}

void MessageRankContext::end_network() noexcept {
  network_->stop();
  if (control_ && !failed()) control_->leave();
}

void MessageRankContext::leave_and_wait() noexcept {
  stop_thread();
  const auto guard = lock();
  leave();
  left_[static_cast<std::size_t>(rank())] = Notice::Kind::left;
  // A rank closes its control connections when it has the notices of all ranks. No rank may watch a
  // host that fails after that, and notices of other ranks arrive at once.
  std::optional<detail::Deadline> deadline;
  attempt([&] {
    while (present() && !failed()) {
      if (network_->progress()) continue;
      if (control_ && control_->another_has_left()) {
        if (!deadline)
          deadline.emplace(std::max<Clock::duration>(options_.heartbeat, send_timeout));
        if (deadline->passed()) break;
      }
      std::this_thread::sleep_for(poll_pause);
    }
  });
  if (present() && !failed()) fail_without_notices();
  end_network();
}

void MessageRankContext::fail_without_notices() noexcept {
  std::vector<int> ranks;
  for (int other = 0; other < size(); ++other) {
    if (!has_left(other)) ranks.push_back(other);
  }
  const auto text = concat("rank ", rank(), ": ", detail::rank_list(ranks),
                           " ended before this rank had the notice of leaving the world");
  log::warn(text);
  record({.kind = Failure::Kind::left, .rank = ranks.front(), .text = text});
}

void MessageRankContext::send(const Notice& notice, int first, int end) noexcept {
  try {
    if (!network_->is_running()) return;
    // Kept after this function: the network may still read it.
    const auto kept = std::make_shared<Notice>(notice);
    const auto waiting = std::make_shared<int>(0);
    for (int other = first; other < end; ++other) {
      if (other == rank()) continue;
      ++*waiting;
      network_->send(reinterpret_cast<const std::byte*>(kept.get()), sizeof *kept, other,
                     notice_tag, [kept, waiting](std::size_t) { --*waiting; });
    }
    const auto until = Clock::now() + send_timeout;
    while (*waiting > 0 && Clock::now() < until) {
      if (!network_->progress()) ::sched_yield();
    }
  } catch (const std::exception& error) {
    log::warn(concat(network_->name(), ": rank ", rank(),
                     " could not send a notice to the other ranks: ", error.what()));
  }
}

}  // namespace lockstep::messages
