#include "comm/host/host_rank_context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "comm/host/host_communicator.h"
#include "comm/host/host_request.h"
#include "comm/host/wake_flag.h"
#include "comm/waiting.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

/// A rank that has waited for so long tells the others what it waits in, and looks for a deadlock.
constexpr auto long_wait = std::chrono::seconds(1);

}  // namespace

RankContext::RankContext(std::shared_ptr<World> world, int rank, const Options& options)
    : world_(std::move(world)),
      rank_(rank),
      options_(options),
      heap_(world_->arena(), rank),
      peers_(*world_, options) {
  // Spinning is free while every rank has a core of its own, and steals from the others when not.
  const bool fits = detail::fit_cores(world_->size(), options.threads_per_rank, options.cores);
  spins_ = fits ? 10000 : 10;
  yields_ = fits ? 0 : 50;
}

RankContext::~RankContext() {
  if (in_child()) return;
  auto& state = arena().rank(rank_);
  const bool by_exception = std::uncaught_exceptions() > exceptions_;
  auto joined = RankStatus::joined;  // else its end has been recorded already
  if (by_exception && state.status.load() == joined) world_->say_how(rank_, "by an exception");
  state.status.compare_exchange_strong(joined, RankStatus::left);
  wake_all(arena());
  if (by_exception && options_.keep_world) World::keep(world_);
}

void RankContext::wake(std::span<const int> ranks) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (arena().header().sleepers.load(std::memory_order_relaxed) == 0) return;
  for (const int rank : ranks) {
    if (rank != rank_) host::wake(arena().rank(rank));
  }
}

void RankContext::wait(const HostRequest& operation) {
  const auto finished = [&] {
    poll();
    if (operation.complete()) return true;
    if (!failed()) return false;
    // All that other ranks wrote before the failure is visible now.
    poll();
    if (operation.complete()) return true;
    throw_failure(operation.where());
  };
  for (int i = 0; i < spins_; ++i) {
    if (finished()) return;
    detail::relax();
  }
  for (int i = 0; i < yields_; ++i) {
    if (finished()) return;
    ::sched_yield();
  }
  const auto limit = detail::wait_limit(operation.operation(), options_.timeout);
  detail::Deadline deadline(limit);
  std::optional<PublishedWait> published;
  std::optional<Deadlock> deadlock;
  for (;;) {
    const Nap nap(arena(), rank_);
    if (finished()) return;
    check(operation);
    check_time(operation, deadline, limit);
    if (deadline.elapsed() >= long_wait) {
      if (!published)
        published.emplace(arena().rank(rank_), operation.group().waited(operation.operation()));
      check_deadlock(operation, deadlock);
    }
    nap.sleep(deadline.nap());
  }
}

bool RankContext::launcher_lives() {
  const auto ended = peers_.launcher_ended();
  if (ended) world_->fail({.text = *ended});
  return !ended;
}

void RankContext::check(const HostRequest& operation) {
  if (!launcher_lives()) throw_failure(operation.where());
  for (const int rank : operation.missing()) {
    const auto& state = arena().rank(rank);
    const auto status = peers_.status_of(rank);
    if (status != RankStatus::left && status != RankStatus::gone) continue;
    // All that the rank published before it left is visible now.
    poll();
    const auto missing = operation.missing();
    if (operation.complete() || std::find(missing.begin(), missing.end(), rank) == missing.end())
      return;
    const std::string how = state.how[0] != '\0' ? concat(" (", state.how, ")") : "";
    world_->fail({.kind = Failure::Kind::left,
                  .rank = rank,
                  .text = concat("rank ", named(rank), " left the world", how, " before ",
                                 operation.operation().label())});
    throw_failure(operation.where());
  }
}

void RankContext::check_time(const HostRequest& operation, detail::Deadline& deadline,
                             std::chrono::milliseconds limit) {
  if (!deadline.passed()) return;
  const auto missing = operation.missing();
  std::vector<int> names;
  std::map<int, std::string_view> notes;
  for (const int rank : missing) {
    const auto& state = arena().rank(rank);
    const bool absent = state.status.load() == RankStatus::absent && state.pid.load() == 0;
    names.push_back(named(rank));
    notes[names.back()] = absent                    ? " (never called init)"
                          : peers_.is_stopped(rank) ? " (stopped)"
                                                    : "";
  }
  const auto note = [&](int name) { return notes[name]; };
  world_->fail({.kind = Failure::Kind::timeout,
                .rank = missing.empty() ? -1 : missing.front(),
                .text = concat(operation.operation().label(), " waited ", limit.count() / 1000.0,
                               " s for ", detail::awaited(names, note))});
  throw_failure(operation.where());
}

void RankContext::check_deadlock(const HostRequest& operation, std::optional<Deadlock>& found) {
  auto again = find_deadlock(arena(), rank_);
  const bool same = again && again == found;
  found = std::move(again);
  if (!same) return;
  const auto name = [this](int rank) { return named(rank); };
  world_->fail(
      {.kind = Failure::Kind::mismatch, .rank = found->rank_at_fault(), .text = found->text(name)});
  throw_failure(operation.where());
}

bool RankContext::is_ending(const Failure& failure) const {
  using Kind = Failure::Kind;
  if (failure.rank < 0 || failure.rank == rank_) return false;
  const bool left_well = arena().rank(failure.rank).how[0] == '\0';
  const bool by_error = failure.kind == Kind::error || failure.kind == Kind::abandoned;
  return (failure.kind == Kind::left && !left_well) || (by_error && options_.supervised);
}

void RankContext::throw_failure(std::string_view where) {
  arena().rank(rank_).raised_failure.store(1);
  for (auto* group : groups_) group->drop();
  // The rank that failed first is writing the record now, unless it was killed in that very moment.
  const auto patience = Clock::now() + std::chrono::seconds(1);
  std::optional<Failure> failure;
  while (!(failure = world_->failure()) && Clock::now() < patience) ::sched_yield();
  if (failure && !met_failure_.met() && is_ending(*failure)) {
    peers_.await_end(failure->rank);
    failure = world_->failure();
  }
  const auto text =
      met_failure_.text(where, failure ? failure->text : "the world failed; its cause was lost");
  log::warn(text);
  if (failure && failure->kind == Failure::Kind::timeout) throw TimeoutError(text);
  throw CommError(text);
}

std::shared_ptr<std::byte> RankContext::allocate(std::size_t bytes) {
  usage_.expect_own_process("host", rank_);
  const std::lock_guard lock(heap_mutex_);
  sweep();
  const auto offset = heap_.take(bytes);
  return {arena().at(offset), [self = shared_from_this(), offset, bytes](std::byte*) {
            if (self->in_child()) return;
            const std::lock_guard inner(self->heap_mutex_);
            self->heap_.give_back(offset, bytes);
          }};
}

std::uint64_t RankContext::take_block(int members) {
  const std::lock_guard lock(heap_mutex_);
  sweep();
  const auto offset = heap_.take(Block::bytes(members));
  std::memset(arena().at(offset), 0, Block::bytes(members));
  Block(arena().at(offset), members).attached().store(static_cast<std::uint64_t>(members));
  return offset;
}

void RankContext::retire(const Block& block) {
  const std::lock_guard lock(heap_mutex_);
  retired_.push_back(block);
  sweep();
}

void RankContext::sweep() {
  std::erase_if(retired_, [&](const Block& block) {
    if (block.attached().load() != 0) return false;
    heap_.give_back(arena().offset_of(block.base()), Block::bytes(block.members()));
    return true;
  });
}

}  // namespace lockstep::host
