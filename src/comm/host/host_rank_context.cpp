#include "comm/host/host_rank_context.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "comm/host/host_communicator.h"
#include "comm/host/world/rank_end.h"
#include "comm/host/world/wake_flag.h"
#include "core/system/crash_handler.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

/// Spinning costs nothing if every rank has a core of its own; else it takes time from other ranks.
detail::WaitPolicy policy(int ranks, const Options& options) {
  const bool fits = detail::fit_cores(ranks, options.threads_per_rank, options.cores);
  return {.spins = fits ? 10000 : 10,
          .yields = fits ? 0 : 50,
          .must_poll = false,
          .between_searches = {}};
}

}  // namespace

HostRankContext::HostRankContext(std::shared_ptr<World> world, int rank, const Options& options)
    : RankContext({.backend = "host",
                   .rank = rank,
                   .timeout = options.timeout,
                   .policy = policy(world->size(), options),
                   .has_mutex = false}),
      CrashListener(Phase::notify),
      world_(std::move(world)),
      options_(options),
      heap_(world_->arena(), rank, HostRankContext::world_rank(rank)),
      peers_(*world_, options),
      launcher_(options.launcher, options.launcher_name) {}

HostRankContext::~HostRankContext() {
  stop_listening();
  if (in_child()) return;
  world_->leave(rank(), std::uncaught_exceptions() > exceptions_ ? "by an exception" : "");
}

void HostRankContext::on_crash(const detail::Crash& crash) noexcept {
  const auto text = detail::crash_text(world_rank(rank()), crash);
  world_->fail(Failure::Kind::crashed, rank(), -1, text.view());
}

void HostRankContext::wake(std::span<const int> ranks) const { wake_ranks(arena(), ranks, rank()); }

bool HostRankContext::sleep_unless(detail::Condition& over, std::chrono::nanoseconds longest) {
  return host::sleep_unless(
      arena(), rank(), [&] { return over.is_ready(); }, longest);
}

void HostRankContext::interrupt() noexcept {
  // As in wake_ranks(): the caller has published why this rank shall wake.
  StdAtomics::fence(Access::wake_fence);
  host::wake(arena().rank(rank()));
}

bool HostRankContext::launcher_runs() {
  const auto ended = launcher_.ended();
  if (ended) world_->fail({.text = *ended});
  return !ended;
}

void HostRankContext::check(const detail::BackendRequest& operation) {
  if (!launcher_runs()) throw_failure(operation.where());
  const auto ended = find_ended(
      operation, [&](int rank) { return peers_.status_of(local_rank(rank)); }, [&] { poll(); });
  if (!ended) return;
  fail_by_end(local_rank(*ended),
              concat(operation.operation().label(),
                     in_parentheses(operation.operation().issue.source), operation.note()));
  throw_failure(operation.where());
}

void HostRankContext::fail_by_end(int rank, std::string_view label) {
  const auto end = world_->end_text(rank);
  const std::string how = end.empty() ? "" : concat(" (", end, ")");
  world_->fail({.kind = Failure::Kind::left,
                .rank = rank,
                .text = concat("rank ", world_rank(rank), " left the world", how, " before ", label,
                               world_->left_well(rank) ? detail::remedy_of_leaving : "")});
}

void HostRankContext::check_processes(std::span<const int> ranks, std::string_view label,
                                      std::string_view where) {
  if (!launcher_runs()) throw_failure(where);
  for (const int rank : ranks) {
    // Threads of this process, and this rank: spawn() records the error of a thread rank.
    const auto& state = arena().rank(rank);
    if (state.pid.load(StdAtomics::order(Access::pid_read)) == ::getpid()) continue;
    const auto status = peers_.status_of(rank);
    const bool by_error = status == RankStatus::left && !world_->end_text(rank).empty();
    if (status != RankStatus::ended && !by_error) continue;
    fail_by_end(rank, label);
    throw_failure(where);
  }
}

std::string HostRankContext::missing_text(std::span<const int> ranks) const {
  return detail::missing_text(ranks, [this](int rank) -> std::string_view {
    const int local = local_rank(rank);
    const auto& state = arena().rank(local);
    const bool absent =
        state.status.load(StdAtomics::order(Access::status_read)) == RankStatus::absent &&
        state.pid.load(StdAtomics::order(Access::pid_read)) == 0;
    return absent ? " (never called init)" : peers_.is_stopped(local) ? " (stopped)" : "";
  });
}

detail::WaitOf HostRankContext::publish_wait(const detail::BackendRequest& operation) {
  if (!published_) {
    const auto& group = static_cast<const HostRequest&>(operation).group();
    for (auto* one : groups()) static_cast<HostCommunicator*>(one)->publish_receives();
    begin_wait(arena().rank(rank()).wait, group.waited(operation.operation()));
    published_ = true;
  }
  return live_waits(arena(), options_.world_ranks);
}

bool HostRankContext::is_ending(const Failure& failure) const {
  using Kind = Failure::Kind;
  if (failure.rank < 0 || failure.rank == rank()) return false;
  const bool by_error = failure.kind == Kind::error || failure.kind == Kind::abandoned;
  return (failure.kind == Kind::left && !world_->left_well(failure.rank)) ||
         (by_error && options_.supervised);
}

void HostRankContext::record(const Failure& failure) noexcept {
  auto here = failure.with(failure.text);
  here.rank = local_rank(failure.rank);
  world_->fail(here, failure.rank);
}

Failure HostRankContext::failure() {
  world_->set_raised_failure(rank());
  // The rank that failed first may still be writing the record. It never completes if the rank was
  // killed meanwhile.
  const auto until = Clock::now() + std::chrono::seconds(1);
  std::optional<Failure> failure;
  while (!(failure = world_->failure()) && Clock::now() < until) ::sched_yield();
  if (failure && !failure_raised() && is_ending(*failure)) {
    peers_.await_end(failure->rank);
    failure = world_->failure();
  }
  if (!failure) return {.text = "the world failed; its cause was lost"};
  failure->rank = failure->rank >= 0 ? world_rank(failure->rank) : world_->failed_elsewhere();
  return *failure;
}

std::string HostRankContext::name_of_new_world(const std::vector<int>& ranks) {
  // The inode identifies the world's memory, which all its ranks hold. All ranks are named:
  // rank_list() would leave out those after the 16th.
  struct stat memory {};
  ::fstat(world_->fd(), &memory);
  return concat("group ", ++new_worlds_[ranks], " of ranks ", detail::joined(ranks, ", "),
                " of world ", memory.st_dev, " ", memory.st_ino);
}

std::shared_ptr<std::byte> HostRankContext::allocate(std::size_t bytes) {
  expect_own_process();
  const std::lock_guard lock(heap_mutex_);
  release_retired_blocks();
  const auto offset = heap_.allocate(bytes);
  return {arena().at(offset), [self = shared_from_this(), offset, bytes](std::byte*) {
            if (self->in_child()) return;
            const std::lock_guard inner(self->heap_mutex_);
            self->heap_.release(offset, bytes);
          }};
}

std::uint64_t HostRankContext::allocate_block(int members) {
  const std::lock_guard lock(heap_mutex_);
  release_retired_blocks();
  const auto offset = heap_.allocate_sparse(Block::bytes(members));
  const Block block(arena().at(offset), members);
  try {
    for (int member = 0; member < members; ++member) arena().populate_records(block, member);
  } catch (const CommError&) {
    heap_.release(offset, Block::bytes(members));
    throw;
  }
  block.attached().store(static_cast<std::uint64_t>(members),
                         StdAtomics::order(Access::block_create));
  return offset;
}

void HostRankContext::retire(const Block& block) {
  const std::lock_guard lock(heap_mutex_);
  retired_.push_back(block);
  release_retired_blocks();
}

void HostRankContext::release_retired_blocks() {
  std::erase_if(retired_, [&](const Block& block) {
    if (!block.all_left()) return false;
    heap_.release(arena().offset_of(block.base()), Block::bytes(block.members()));
    return true;
  });
}

}  // namespace lockstep::host
