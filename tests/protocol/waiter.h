#pragma once

#include "tests/protocol/world.h"

namespace lockstep::testing {

/// What one rank does to wait, to fail and to raise the failure of the world: the calls of
/// HostRankContext, without its texts and times.
template <class Arena>
class Waiter {
 public:
  Waiter(const Arena& arena, Kernel& kernel, int rank)
      : arena_(arena), kernel_(kernel), rank_(rank) {}

  /// Waits for an operation, which has advance(), complete() and missing(). Sleeps where nothing
  /// else is to do. False if the world has failed.
  template <class Operation>
  bool wait(Operation& operation) {
    auto state = detail::WaitState::pending;
    const auto over = [&] {
      state = poll(operation);
      if (state == detail::WaitState::pending && settings.victim >= 0) check(operation, state);
      return state != detail::WaitState::pending;
    };
    while (!host::sleep_unless(arena_, rank_, over, std::chrono::nanoseconds(1))) {
    }
    return state == detail::WaitState::complete;
  }

  /// The same without sleep, for an operation that cannot fail.
  template <class Operation>
  void spin(Operation& operation) {
    const auto never = [] { return false; };
    const std::function<bool()> ready = [&] { return operation.can_advance(); };
    for (;;) {
      kernel_.spin_until(ready);
      const auto state = detail::poll_wait([&] { operation.advance(); },
                                           [&] { return operation.complete(); }, never);
      if (state != detail::WaitState::pending) return;
      if (kernel_.is_ready(ready)) kernel_.yield();  // the poll saw old values
    }
  }

  /// Records the failure of the world, whose cause is a rank.
  void fail(int cause) {
    auto& header = arena_.header();
    const bool first = header.failed.write_once([&] {
      arena_.failure_writer = rank_;
      header.failed_rank = cause;
    });
    if (first) host::wake_all(arena_);
  }

  /// The cause of the failure; empty if its writer has died, which HostRankContext notices by time.
  std::optional<int> cause() const {
    const auto& header = arena_.header();
    const auto writer_died = [&] {
      return arena_.failure_writer >= 0 && kernel_.is_dead(arena_.failure_writer);
    };
    const std::function<bool()> ready = [&] { return writer_died() || header.failed.readable(); };
    for (;;) {
      kernel_.spin_until(ready);
      const bool died = writer_died();
      if (header.failed.readable()) break;
      if (died) return std::nullopt;
      kernel_.yield();
    }
    return header.failed_rank;
  }

 private:
  template <class Operation>
  detail::WaitState poll(Operation& operation) {
    return detail::poll_wait([&] { operation.advance(); }, [&] { return operation.complete(); },
                             [&] { return arena_.header().failed.begun(Access::failure_begun); });
  }

  template <class Operation>
  void check(Operation& operation, detail::WaitState& state) {
    const auto status_of = [&](int rank) {
      return host::watch_status(
          arena_.rank(rank), [&] { return kernel_.has_ended(rank); },
          [&] {
            host::set_ended(arena_, rank, [](auto& rank_state) {
              rank_state.end_text = host::EndText{"its process ended"};
            });
          });
    };
    const auto ended = host::find_ended(operation, status_of, [&] { operation.advance(); });
    if (ended) {
      const auto* text = host::end_text_of(arena_.rank(*ended));
      expect(text != nullptr, "a rank that ended has a text");
      if (text != nullptr) static_cast<void>(static_cast<host::EndText>(*text));
      fail(*ended);
      state = detail::WaitState::failed;
    } else if (operation.complete()) {
      state = detail::WaitState::complete;
    }
  }

  const Arena& arena_;
  Kernel& kernel_;
  int rank_;
};

}  // namespace lockstep::testing
