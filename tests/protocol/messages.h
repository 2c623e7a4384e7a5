#pragma once

#include "tests/protocol/waiter.h"

namespace lockstep::testing {

struct MessageCase {
  std::uint64_t count = 1;  ///< of messages
  bool sleeps = false;
  bool probes = false;  ///< whether the receiver looks at the message before it receives it
};
inline MessageCase message_case;

/// Rank 0 sends messages to rank 1 from one buffer, which it writes again after each.
struct Messages : Scenario<Messages, 2> {
  using Block = host::BasicBlock<RelacyAtomics, SmallSizes<1, 2>>;
  using Arena = SmallArena<2, Block>;

  struct Request {
    Messages& world;
    int rank;
    std::uint64_t number;
    host::SendSteps<RelacyAtomics> steps;
    bool is_complete = false;

    Request(Messages& in, int own_rank, std::uint64_t of)
        : world(in), rank(own_rank), number(of), steps(in.mailbox(), of) {}

    void advance() {
      if (is_complete) return;
      const auto wake = [&] {
        if (!message_case.sleeps) return;
        host::wake_ranks(world.arena, std::array{1 - rank}, rank);
      };
      const auto write = [&](auto& mailbox) { mailbox.count = number; };
      if (rank == 0) {
        is_complete = steps.advance(write, wake);
      } else if (auto& mailbox = world.mailbox(); host::has_message(mailbox)) {
        expect(mailbox.count == number, "terms of another message");
        expect(world.data == static_cast<int>(number), "data of another message");
        host::take_message(mailbox, wake);
        is_complete = true;
      }
    }
    bool complete() const { return is_complete; }
    bool can_advance() const {
      const auto done = rank == 0 ? world.mailbox().taken.latest() : world.mailbox().sent.latest();
      return done >= number;
    }
    std::vector<int> missing() const { return {1 - rank}; }
  };

  /// Whether the receiver sees a message that it has not begun to receive, and its terms.
  struct Probe {
    Messages& world;
    std::uint64_t number;
    bool seen = false;

    void advance() { seen = seen || host::has_message(world.mailbox()); }
    bool complete() const { return seen; }
    bool can_advance() const { return world.mailbox().sent.latest() == number; }
    std::vector<int> missing() const { return {0}; }
  };

  template <class Operation>
  bool wait(Waiter<Arena>& waiter, Operation& operation) {
    if (message_case.sleeps) return waiter.wait(operation);
    waiter.spin(operation);
    return true;
  }

  void run(int rank) {
    Waiter<Arena> waiter(arena, kernel, rank);
    for (std::uint64_t number = 1; number <= message_case.count; ++number) {
      if (rank == 0) data = static_cast<int>(number);
      if (rank == 1 && message_case.probes) {
        Probe probe{.world = *this, .number = number};
        if (!wait(waiter, probe)) return failed(waiter, rank);
        expect(mailbox().count == number, "a probe saw other terms");
      }
      Request request(*this, rank, number);
      if (rank == 0) request.steps.begin();
      request.advance();
      if (!request.complete() && !wait(waiter, request)) return failed(waiter, rank);
    }
  }

  void failed(const Waiter<Arena>& waiter, int rank) {
    expect(waiter.cause() == settings.victim && rank != settings.victim, "wrong cause");
  }

  Block::Mailbox& mailbox() { return arena.block().mailbox(0, 1); }

  Arena arena;
  RelacyAtomics::Plain<int> data;
};

}  // namespace lockstep::testing
