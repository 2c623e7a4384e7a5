#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "comm/host/world/wake_flag.h"
#include "comm/host/world/world_layout.h"

// How a rank joins, leaves and ends, and how other ranks detect it.

namespace lockstep::inline v0_2::host {

/// Sets the status of a rank that joins. False if it has joined before.
template <class Atomics>
bool set_joined(BasicRankState<Atomics>& state) {
  auto absent = RankStatus::absent;
  return state.status.compare_exchange_strong(absent, RankStatus::joined,
                                              Atomics::order(Access::status_join));
}

/// Sets the status of a rank that leaves, unless its end is recorded already, and wakes all ranks.
template <class Arena>
void set_left(const Arena& arena, int rank) {
  using Atomics = typename Arena::Atomics;
  auto joined = RankStatus::joined;
  arena.rank(rank).status.compare_exchange_strong(joined, RankStatus::left,
                                                  Atomics::order(Access::status_leave));
  wake_all(arena);
}

/// Records that the process of a rank has ended. write(state) writes how, into end_text; only the
/// first call does so.
template <class Arena, class Write>
void set_ended(const Arena& arena, int rank, const Write& write) {
  using Atomics = typename Arena::Atomics;
  auto& state = arena.rank(rank);
  state.end.write_once([&] { write(state); });
  state.status.store(RankStatus::ended, Atomics::order(Access::status_end));
  wake_all(arena);
}

/// The status of a rank. has_ended() is whether its process has ended; then mark() records it.
template <class Atomics, class HasEnded, class Mark>
RankStatus watch_status(const BasicRankState<Atomics>& state, const HasEnded& has_ended,
                        const Mark& mark) {
  const auto here = [&] {
    const auto status = state.status.load(Atomics::order(Access::status_running));
    return status == RankStatus::absent || status == RankStatus::joined;
  };
  if (here() && has_ended() && here()) mark();
  return state.status.load(Atomics::order(Access::status_read));
}

/// How the rank left or ended; null if it has done neither.
template <class Atomics>
const typename Atomics::template Plain<EndText>* end_text_of(const BasicRankState<Atomics>& state) {
  if (state.end.readable()) return &state.end_text;
  const auto status = state.status.load(Atomics::order(Access::status_read));
  const bool gone = status == RankStatus::left || status == RankStatus::ended;
  return gone ? &state.leave_text : nullptr;
}

/// The first rank that has left or ended without doing its part of the operation. status_of(rank)
/// returns a status, poll() advances the operations of this rank.
template <class Operation, class StatusOf, class Poll>
std::optional<int> find_ended(const Operation& operation, const StatusOf& status_of,
                              const Poll& poll) {
  for (const int rank : operation.missing()) {
    const auto status = status_of(rank);
    if (status != RankStatus::left && status != RankStatus::ended) continue;
    // Data that the rank published before it left are visible now.
    poll();
    if (operation.complete()) return std::nullopt;
    const auto missing = operation.missing();
    if (std::find(missing.begin(), missing.end(), rank) == missing.end()) return std::nullopt;
    return rank;
  }
  return std::nullopt;
}

/// Publishes the pid of a rank's process in a pid namespace.
template <class Atomics>
void set_pid(BasicRankState<Atomics>& state, std::int32_t pid, std::uint64_t pid_namespace) {
  state.pid_namespace = pid_namespace;
  state.pid.store(pid, Atomics::order(Access::pid_publish));
}

/// The rank's pid; 0 if it is unknown or in another pid namespace.
template <class Atomics>
std::int32_t pid_of(const BasicRankState<Atomics>& state, std::uint64_t pid_namespace) {
  const std::int32_t pid = state.pid.load(Atomics::order(Access::pid_read));
  return pid != 0 && state.pid_namespace == pid_namespace ? pid : 0;
}

}  // namespace lockstep::host
