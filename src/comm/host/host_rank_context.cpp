#include "comm/host/host_rank_context.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/announcement.h"
#include "comm/host/host_communicator.h"
#include "comm/host/world/rank_end.h"
#include "comm/host/world/wake_flag.h"
#include "core/system/crash_handler.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [What a host world publishes about waits]
// A rank that has waited for a second publishes its operation and group in the world's memory.
// Every member of a group publishes the number of collectives that it has begun. A sender publishes
// the number of its last message. A receiver publishes how many messages it has taken and, before
// its wait, from how many receives each sender may expect that they take its message.
// A waiting rank may take messages, which changes what it waits for. It ends its wait before, and
// publishes a new one.

namespace lockstep::inline v0_2::host {
namespace {

using detail::concat;
using detail::PendingWait;
using Clock = std::chrono::steady_clock;

/// Spinning costs nothing if every rank has a core of its own; else it takes time from other ranks.
detail::WaitPolicy policy(int ranks, const Options& options) {
  const bool fits = detail::fit_cores(ranks, options.threads_per_rank, options.cores);
  return {.spins = fits ? 10000 : 10,
          .yields = fits ? 0 : 50,
          .must_poll = false,
          .between_searches = {}};
}

/// The published wait of a rank of the arena, with world ranks.
std::optional<PendingWait> published_wait(const Arena& arena, int rank,
                                          std::span<const int> world_ranks) {
  const auto name = [&](int one) { return world_ranks[static_cast<std::size_t>(one)]; };
  const auto wait = read_wait(arena.rank(rank).wait);
  if (!wait) return std::nullopt;
  const auto& waited = wait->waited;
  PendingWait found{.rank = name(rank), .turn = wait->turn, .operation = {}, .missing = {}};
  found.for_any = waited.collective == Collective::recv && waited.peer == any_source;
  const Block block(arena.at(waited.group), waited.members);
  std::vector<int> group;
  for (int i = 0; i < waited.members; ++i) {
    const int next = member_rank(block, i);
    const bool is_rank = next >= 0 && next < arena.size();
    group.push_back(is_rank ? name(next) : -1);
    const bool is_partner = waited.peer < 0 || i == waited.peer;
    const bool is_pending = is_rank && !has_begun(block, waited, i);
    // A message of any rank ends the wait. While the rank waits, it sends itself none.
    if (found.for_any && !is_pending) return std::nullopt;
    const bool is_self = found.for_any && next == rank && waited.members > 1;
    if (is_partner && is_pending && !is_self) found.missing.push_back(name(next));
  }
  const Operation operation{
      .collective = waited.collective, .peer = waited.peer, .sequence = waited.sequence};
  const auto of_group =
      waited.number == 0 ? " of the world" : detail::of_group(waited.number, group);
  found.operation = concat(operation.label(), of_group, in_parentheses(waited.source));
  return found;
}

/// The memory of a block, in whole pages.
std::size_t bytes_of_block(int members) { return round_up(Block::bytes(members), page); }

}  // namespace

detail::WaitOf live_waits(const Arena& arena, std::vector<int> world_ranks) {
  if (world_ranks.empty()) {
    world_ranks.resize(static_cast<std::size_t>(arena.size()));
    std::iota(world_ranks.begin(), world_ranks.end(), 0);
  }
  return [&arena, names = std::move(world_ranks)](int world_rank) {
    const auto found = std::ranges::find(names, world_rank);
    return published_wait(arena, static_cast<int>(found - names.begin()), names);
  };
}

HostRankContext::HostRankContext(std::shared_ptr<World> world, int rank, const Options& options)
    : RankContext({.backend = "host",
                   .rank = rank,
                   .timeout = options.timeout,
                   .policy = policy(world->size(), options),
                   .has_mutex = false}),
      CrashListener(Phase::notify),
      world_(std::move(world)),
      options_(options),
      heap_(*world_, rank, HostRankContext::world_rank(rank)),
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
  const auto& announced = operation.operation().announced();
  const auto& source = announced.issue.source;
  fail_by_end(local_rank(*ended),
              concat(announced.label(), in_parentheses(source), operation.note()), source);
  throw_failure(operation.where());
}

void HostRankContext::fail_by_end(int rank, std::string_view label, const Source& source) {
  const auto end = world_->end_text(rank);
  const std::string how = end.empty() ? "" : concat(" (", end, ")");
  world_->fail({.kind = Failure::Kind::left,
                .rank = rank,
                .text = concat("rank ", world_rank(rank), " left the world", how, " before ", label,
                               world_->left_well(rank) ? detail::remedy_of_leaving(source) : "")});
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
    fail_by_end(rank, label, {});
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
  const auto offset = heap_.allocate_sparse(bytes_of_block(members));
  const Block block(arena().at(offset), members);
  try {
    for (int member = 0; member < members; ++member) arena().populate_records(block, member);
  } catch (const CommError&) {
    heap_.release(offset, bytes_of_block(members));
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
    heap_.release(arena().offset_of(block.base()), bytes_of_block(block.members()));
    return true;
  });
}

}  // namespace lockstep::host
