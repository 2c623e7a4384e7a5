#include "lockstep/comm/host/endpoint.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "lockstep/comm/host/bell.h"
#include "lockstep/comm/host/in_flight.h"
#include "lockstep/comm/waiting.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::host {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

/// A sleeping rank looks at its peers this often even if nobody rings.
constexpr auto longest_nap = std::chrono::milliseconds(200);

}  // namespace

Endpoint::Endpoint(std::shared_ptr<World> world, int rank, const Options& options)
    : world_(std::move(world)), rank_(rank), options_(options), heap_(world_->arena(), rank) {
  // Spinning is free while every rank has a core of its own, and steals from the others when not.
  const bool fits = detail::fit_cores(world_->size(), options.threads_per_rank, options.cores);
  spins_ = fits ? 10000 : 10;
  yields_ = fits ? 0 : 50;
}

Endpoint::~Endpoint() {
  auto joined = RankStatus::joined;  // else somebody has said why it is gone
  arena().rank(rank_).status.compare_exchange_strong(joined, RankStatus::left);
  ring_all(arena());
}

void Endpoint::ring(std::span<const int> ranks) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (arena().header().sleepers.load(std::memory_order_relaxed) == 0) return;
  for (const int rank : ranks) {
    if (rank != rank_) host::ring(arena().rank(rank));
  }
}

void Endpoint::wait(const InFlight& operation) {
  const auto finished = [&] {
    poll();
    if (operation.complete()) return true;
    if (!failed()) return false;
    // What the others gave before the failure is visible now.
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
  const auto begin = Clock::now();
  for (;;) {
    const Nap nap(arena(), rank_);
    if (finished()) return;
    check(operation);
    const auto waited = Clock::now() - begin;
    check_time(operation, waited, limit);
    nap.sleep(std::min<Clock::duration>(limit - waited, longest_nap));
  }
}

void Endpoint::watch() {
  watched_.resize(static_cast<std::size_t>(world_->size()));
  pid_space_ = pid_space();
}

RankStatus Endpoint::status_of(int rank) {
  const auto& state = arena().rank(rank);
  const auto at = static_cast<std::size_t>(rank);
  const auto here = [&] {
    const auto status = state.status.load();
    return status == RankStatus::absent || status == RankStatus::joined;
  };
  if (at < watched_.size() && here()) {
    auto& process = watched_[at];
    const int pid = state.pid.load(std::memory_order_acquire);
    // A rank in another pid namespace cannot be watched: the timeout finds it.
    if (!process && pid != 0 && state.pid_space == pid_space_) process.emplace(pid);
    if (process && process->ended() && here()) world_->mark_gone(rank, "its process ended");
  }
  return state.status.load(std::memory_order_acquire);
}

void Endpoint::check(const InFlight& operation) {
  for (const int rank : operation.missing()) {
    const auto& state = arena().rank(rank);
    const auto status = status_of(rank);
    if (status != RankStatus::left && status != RankStatus::gone) continue;
    // What it published before it left is visible now.
    poll();
    const auto missing = operation.missing();
    if (operation.complete() || std::find(missing.begin(), missing.end(), rank) == missing.end())
      return;
    const std::string how = status == RankStatus::gone ? concat(" (", state.how, ")") : "";
    world_->fail({.kind = Failure::Kind::left,
                  .rank = rank,
                  .text = concat("rank ", named(rank), " left the world", how, " before ",
                                 operation.operation().label())});
    throw_failure(operation.where());
  }
}

void Endpoint::check_time(const InFlight& operation, Clock::duration waited,
                          std::chrono::milliseconds limit) {
  if (waited < limit) return;
  const auto missing = operation.missing();
  std::vector<int> names;
  std::map<int, std::string_view> notes;
  for (const int rank : missing) {
    const auto& state = arena().rank(rank);
    const bool absent = state.status.load() == RankStatus::absent && state.pid.load() == 0;
    names.push_back(named(rank));
    notes[names.back()] = absent ? " (never called init)" : "";
  }
  const auto note = [&](int name) { return notes[name]; };
  world_->fail({.kind = Failure::Kind::timeout,
                .rank = missing.empty() ? -1 : missing.front(),
                .text = concat(operation.operation().label(), " waited ", limit.count() / 1000.0,
                               " s for ", detail::awaited(names, note))});
  throw_failure(operation.where());
}

void Endpoint::throw_failure(std::string_view where) {
  for (auto* group : groups_) group->drop();
  // Whoever was first is writing the record at this moment, unless it was killed in that very
  // moment.
  const auto patience = Clock::now() + std::chrono::seconds(1);
  std::optional<Failure> failure;
  while (!(failure = world_->failure()) && Clock::now() < patience) ::sched_yield();
  const std::string text =
      concat(where, ": ", failure ? failure->text : "the world failed; its cause was lost");
  log::warn(text);
  if (failure && failure->kind == Failure::Kind::timeout) throw TimeoutError(text);
  throw CommError(text);
}

std::shared_ptr<std::byte> Endpoint::allocate(std::size_t bytes) {
  const std::lock_guard lock(heap_mutex_);
  sweep();
  const auto offset = heap_.take(bytes);
  return {arena().at(offset), [self = shared_from_this(), offset, bytes](std::byte*) {
            const std::lock_guard inner(self->heap_mutex_);
            self->heap_.give_back(offset, bytes);
          }};
}

std::uint64_t Endpoint::take_block(int members) {
  const std::lock_guard lock(heap_mutex_);
  sweep();
  const auto offset = heap_.take(Block::bytes(members));
  std::memset(arena().at(offset), 0, Block::bytes(members));
  Block(arena().at(offset), members).attached().store(static_cast<std::uint64_t>(members));
  return offset;
}

void Endpoint::retire(const Block& block) {
  const std::lock_guard lock(heap_mutex_);
  retired_.push_back(block);
  sweep();
}

void Endpoint::sweep() {
  std::erase_if(retired_, [&](const Block& block) {
    if (block.attached().load() != 0) return false;
    heap_.give_back(arena().offset_of(block.base()), Block::bytes(block.members()));
    return true;
  });
}

}  // namespace lockstep::host
