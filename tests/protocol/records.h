#pragma once

#include <bit>

#include "tests/protocol/waiter.h"

// Small scenarios: one part of the protocol each.

namespace lockstep::testing {

using SmallBlock = host::BasicBlock<RelacyAtomics, SmallSizes<1, 1>>;

/// A scenario with the memory of a small world.
template <class Derived, int rank_count = 2>
struct SmallScenario : Scenario<Derived, rank_count> {
  using Arena = SmallArena<rank_count, SmallBlock>;
  Arena arena;
};

/// An operation that is complete when a counter of the group has a value.
template <class Arena>
struct CounterWait {
  const Arena& arena;
  int member;
  bool is_complete = false;

  void advance() {
    const auto& counter = arena.block().finished(member).value;
    is_complete = is_complete || counter.load(RelacyAtomics::order(Access::finished_read)) == 1;
  }
  bool complete() const { return is_complete; }
  std::vector<int> missing() const {
    return is_complete ? std::vector<int>() : std::vector{member};
  }
};

/// Each rank publishes a counter, then sleeps until the last rank has published its own.
template <int rank_count>
struct WakeUps : SmallScenario<WakeUps<rank_count>, rank_count> {
  void run(int rank) {
    const int other = rank_count - 1;
    if (rank_count > 2 || rank == other) publish(rank);
    if (rank == other) return;
    Waiter waiter(this->arena, this->kernel, rank);
    CounterWait wait{.arena = this->arena, .member = other};
    waiter.wait(wait);
    static_cast<void>(static_cast<int>(data[static_cast<std::size_t>(other)]));
  }
  void publish(int rank) {
    data[static_cast<std::size_t>(rank)] = 1;
    this->arena.block().finished(rank).value.store(1,
                                                   RelacyAtomics::order(Access::finished_publish));
    std::array<int, rank_count> members;
    for (int i = 0; i < rank_count; ++i) members[static_cast<std::size_t>(i)] = i;
    host::wake_ranks(this->arena, members, rank);
  }
  /// Later wake-ups would be system calls for nobody.
  void finish() {
    expect(this->arena.header().sleepers.latest() == 0, "a rank counts as sleeping");
    for (int rank = 0; rank < rank_count; ++rank) {
      expect(this->arena.rank(rank).asleep.latest() == 0, "a rank is marked as asleep");
    }
  }

  std::array<RelacyAtomics::Plain<int>, rank_count> data;
};

/// Ranks 0 and 1 fail the world at the same time. The last rank waits for data of rank 0. With 2
/// ranks, only rank 0 fails the world.
template <int rank_count>
struct Failures : SmallScenario<Failures<rank_count>, rank_count> {
  void run(int rank) {
    Waiter waiter(this->arena, this->kernel, rank);
    if (rank == 0 || (rank_count > 2 && rank == 1)) {
      waiter.fail(rank);
    } else {
      CounterWait never{.arena = this->arena, .member = 0};
      expect(!waiter.wait(never), "an operation without data is complete");
    }
    cause[static_cast<std::size_t>(rank)] = waiter.cause();
  }
  void finish() {
    std::optional<int> first;
    for (int rank = 0; rank < rank_count; ++rank) {
      if (this->kernel.is_dead(rank)) continue;
      const auto& seen = cause[static_cast<std::size_t>(rank)];
      if (!seen) {
        expect(settings.victim >= 0, "the cause was lost");
        continue;
      }
      expect(*seen == 0 || *seen == 1, "a cause that no rank wrote");
      expect(!first || *first == *seen, "two causes");
      first = seen;
    }
  }

  std::array<std::optional<int>, rank_count> cause;
};

/// Rank 0 publishes its data and then fails the world. Rank 1 still completes.
struct FailsAfterPublishing : SmallScenario<FailsAfterPublishing> {
  void run(int rank) {
    Waiter<Arena> waiter(arena, kernel, rank);
    if (rank == 0) {
      arena.block().finished(0).value.store(1, RelacyAtomics::order(Access::finished_publish));
      host::wake_ranks(arena, std::array{1}, 0);
      waiter.fail(0);
      return;
    }
    CounterWait<Arena> wait{.arena = arena, .member = 0};
    expect(waiter.wait(wait), "data from before the failure are missing");
  }
};

/// Ranks record an error of rank 0, which another reads.
struct Errors : SmallScenario<Errors> {
  void run(int rank) {
    auto& state = arena.rank(0);
    state.error.write_once([&] {
      ++written;
      state.error_origin = rank;
    });
    if (state.error.readable()) static_cast<void>(static_cast<std::int32_t>(state.error_origin));
  }
  void finish() { expect(written == 1, "an error was recorded twice"); }

  int written = 0;
};

/// Rank 0 has died. The other ranks mark it as ended, and read how it ended.
struct Ends : SmallScenario<Ends> {
  void run(int rank) {
    auto& dead = arena.rank(0);
    const auto status = host::watch_status(
        dead, [] { return true; },
        [&] {
          host::set_ended(arena, 0, [&](auto& state) {
            state.end_text = host::EndText{static_cast<char>('0' + rank)};
          });
        });
    expect(status == host::RankStatus::ended, "a rank that ended has another status");
    const auto* text = host::end_text_of(dead);
    expect(text != nullptr, "a rank that ended has no text");
    if (text != nullptr) static_cast<void>(static_cast<host::EndText>(*text));
  }
};

/// Rank 0 marks rank 1 as ended, and rank 1 stands for a rank that reads that.
struct EndTexts : SmallScenario<EndTexts> {
  void run(int rank) {
    const auto write = [](auto& state) { state.end_text = host::EndText{"SIGKILL"}; };
    if (rank == 0) return host::set_ended(arena, 1, write);
    const auto& state = arena.rank(1);
    const auto status = state.status.load(RelacyAtomics::order(Access::status_read));
    if (status != host::RankStatus::ended) return;
    const host::EndText text = *host::end_text_of(state);
    expect(text.text[0] == 'S', "a rank that ended has no text");
  }
};

/// Rank 0 joins, writes how it leaves, and leaves, while rank 1 reads that.
struct Leaves : SmallScenario<Leaves> {
  void run(int rank) {
    auto& state = arena.rank(0);
    if (rank == 0) {
      expect(host::set_joined(state), "joined twice");
      host::set_pid(state, 77, 5);
      state.leave_text = host::EndText{"by an exception"};
      host::set_left(arena, 0);
      return;
    }
    const auto pid = host::pid_of(state, 5);
    expect(pid == 0 || pid == 77, "wrong pid");
    if (const auto* text = host::end_text_of(state)) {
      static_cast<void>(static_cast<host::EndText>(*text));
    }
  }
};

/// Members leave a group. The owner then uses its memory for something else.
template <int rank_count>
struct Retirements : SmallScenario<Retirements<rank_count>, rank_count> {
  Retirements() {
    this->arena.block().attached().store(rank_count, RelacyAtomics::order(Access::block_create));
  }
  void run(int rank) {
    auto& own = *reinterpret_cast<SmallBlock::Data*>(this->arena.block().slot(rank, 0));
    own[0] = rank;
    this->arena.block().leave();
    if (rank != 0 || !this->arena.block().all_left()) return;
    for (int member = 0; member < rank_count; ++member) {
      (*reinterpret_cast<SmallBlock::Data*>(this->arena.block().slot(member, 0)))[0] = 99;
    }
  }
};

/// Rank 0 waits in one operation, then in another. Rank 1 reads its wait.
struct Waits : SmallScenario<Waits> {
  static host::Waited waited(int turn) {
    return {.members = turn, .peer = turn, .sequence = static_cast<std::uint64_t>(turn)};
  }
  void run(int rank) {
    auto& record = arena.rank(0).wait;
    if (rank == 0) {
      host::set_issued(arena.block(), 0, 6);
      host::set_member_rank(arena.block(), 0, 0);
      host::begin_wait(record, waited(1));
      host::end_wait(record);
      host::begin_wait(record, waited(2));
      return;
    }
    const auto wait = host::read_wait(record);
    if (!wait) return;
    expect(wait->waited == waited(wait->turn == 1 ? 1 : 2), "fields of two waits");
    // What the rank began before it waits: another rank must not take it for missing.
    const host::Waited earlier{.collective = Collective::barrier, .sequence = 6};
    expect(host::has_begun(arena.block(), earlier, 0), "an operation that was begun is missing");
    expect(host::member_rank(arena.block(), 0) == 0, "a member that has joined is missing");
  }
};

/// Rank 0 writes an entry of the flight recorder twice, rank 1 reads it.
struct FlightEntries : Scenario<FlightEntries, 2> {
  static detail::FlightOperation operation(std::uint64_t number) {
    return {.issued_at = number,
            .ended_at = 0,
            .sequence = number,
            .bytes = number,
            .source = number,
            .peer = static_cast<std::int32_t>(number),
            .group_index = static_cast<std::uint16_t>(number),
            .collective = Collective::barrier,
            .dtype = DType::f32};
  }
  void run(int rank) {
    if (rank == 0) {
      entry.write(1, operation(1));
      entry.write(2, operation(2));
      return;
    }
    for (const std::uint64_t number : {1, 2}) {
      const auto read = entry.read(number);
      expect(!read || *read == operation(number), "fields of two operations");
    }
  }

  detail::BasicFlightEntry<RelacyAtomics> entry;
};

}  // namespace lockstep::testing
