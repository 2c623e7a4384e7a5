#pragma once

#include <memory>

#include "tests/protocol/waiter.h"

namespace lockstep::testing {

struct CollectiveCase {
  host::Path path = host::Path::eager;
  std::uint64_t count = 1;        ///< of collectives
  std::uint64_t outstanding = 1;  ///< collectives that a rank has begun at the same time
  std::uint64_t steps = 1;        ///< of each, on the staged path
  bool sleeps = false;            ///< whether ranks sleep while they wait; else they spin
  bool leaves = false;            ///< whether ranks leave the world at their end
};
inline CollectiveCase collective_case;

/// Ranks issue all_reduces. Each member has one element for each member to reduce.
template <int rank_count, std::uint64_t ring>
struct Collectives : Scenario<Collectives<rank_count, ring>, rank_count> {
  static constexpr int ranks = rank_count;
  using Block = host::BasicBlock<RelacyAtomics, SmallSizes<ring, ranks>>;
  using Data = typename Block::Data;
  using Steps = host::CollectiveSteps<Block>;
  using Arena = SmallArena<ranks, Block>;

  static int value(int rank, std::uint64_t sequence, std::uint64_t step) {
    return 1 + rank + 10 * static_cast<int>(sequence) + 100 * static_cast<int>(step);
  }
  static int sum(std::uint64_t sequence, std::uint64_t step) {
    int total = 0;
    for (int rank = 0; rank < ranks; ++rank) total += value(rank, sequence, step);
    return total;
  }

  class Request {
   public:
    Request(Collectives& world, int rank, std::uint64_t sequence)
        : world_(world),
          rank_(rank),
          sequence_(sequence),
          steps_(world.arena.block(), rank, sequence) {
      if (collective_case.path != host::Path::zero_copy) return;
      for (auto& element : own()) element = value(rank, sequence, 0);
    }

    bool announced() const { return steps_.announced(); }
    bool announce() { return steps_.announce(progress(), *this); }
    void advance() {
      if (complete_ || !steps_.advance(progress(), *this)) return;
      complete_ = true;
      if (collective_case.path != host::Path::zero_copy) return;
      for (const auto& element : own()) expect(element == sum(sequence_, 0), "wrong result");
    }
    bool next_may_begin() const { return complete_ || steps_.next_may_begin(); }
    bool complete() const { return complete_; }
    void wake() {
      if (!collective_case.sleeps) return;
      std::array<int, ranks> woken;
      for (int i = 0; i < ranks; ++i) woken[index(i)] = i;
      host::wake_ranks(world_.arena, woken, rank_);
    }
    bool can_advance() const {
      const auto& block = world_.arena.block();
      if (announced()) return missing().empty();
      for (int member = 0; member < ranks; ++member) {
        const auto finished = block.finished(member).value.latest();
        if (finished < progress().finished_at[sequence_ % ring]) return false;
      }
      return true;
    }
    std::vector<int> missing() const {
      std::vector<int> missing;
      for (int member = 0; member < ranks; ++member) {
        if (member != rank_ && steps_.is_late(progress(), member)) missing.push_back(member);
      }
      return missing;
    }

   private:
    friend Steps;

    typename Steps::Progress& progress() const { return world_.members[index(rank_)].progress; }
    Data& own() { return buffer(rank_); }
    Data& buffer(int member) {
      return world_.buffers[index(member)][sequence_ % collective_case.outstanding];
    }
    Data& slot(int member) {
      return *reinterpret_cast<Data*>(world_.arena.block().slot(member, sequence_));
    }
    Data& chunk(int member, std::uint64_t step) {
      return *reinterpret_cast<Data*>(world_.arena.block().chunk(member, step));
    }
    static std::size_t index(int i) { return static_cast<std::size_t>(i); }

    // For CollectiveSteps.
    void write_announcement(typename Block::AnnouncementEntry& entry) {
      entry.offset = sequence_;
      if (collective_case.path == host::Path::eager) slot(rank_)[0] = value(rank_, sequence_, 0);
    }
    bool compare_announcements() {
      for (int member = 0; member < ranks; ++member) {
        const auto& entry = world_.arena.block().entry(member, sequence_);
        expect(entry.offset == sequence_, "an announcement of another collective");
      }
      return true;
    }
    host::CollectivePlan plan() {
      const bool staged = collective_case.path == host::Path::staged;
      return {.path = collective_case.path, .steps = staged ? collective_case.steps : 1};
    }
    void copy_in(std::uint64_t step) {
      for (int member = 0; member < ranks; ++member) {
        if (member != rank_) chunk(rank_, step)[index(member)] = value(rank_, sequence_, step);
      }
    }
    /// Reduces the element of this rank. Where it lies with the other members, all get the result.
    void work(std::uint64_t step) {
      const bool eager = collective_case.path == host::Path::eager;
      const bool staged = collective_case.path == host::Path::staged;
      const auto element = [&](int member) -> auto& {
        return eager    ? slot(member)[0]
               : staged ? chunk(member, step)[index(rank_)]
                        : buffer(member)[index(rank_)];
      };
      int total = value(rank_, sequence_, step);
      for (int member = 0; member < ranks; ++member) {
        if (member != rank_) total += element(member);
      }
      expect(total == sum(sequence_, step), "wrong sum");
      for (int member = 0; member < ranks; ++member) {
        const bool writes = eager ? ranks == 2 && member != rank_ : !staged || member != rank_;
        if (writes) element(member) = total;
      }
    }
    void copy_out(std::uint64_t step) {
      if (collective_case.path != host::Path::staged) return;
      for (int member = 0; member < ranks; ++member) {
        if (member == rank_) continue;
        expect(chunk(rank_, step)[index(member)] == sum(sequence_, step), "wrong result");
      }
    }
    Collectives& world_;
    int rank_;
    std::uint64_t sequence_;
    Steps steps_;
    bool complete_ = false;
  };

  /// One rank's part of the group, as HostCommunicator.
  struct Member {
    typename Steps::Progress progress{ranks};
    std::deque<std::unique_ptr<Request>> requests;
    bool failed = false;
    std::optional<int> cause;

    void advance() { host::advance_in_order(requests); }
    bool complete() const { return requests.empty(); }
    /// Whether a poll can change something, for the last values.
    bool can_advance() const { return complete() || requests.front()->can_advance(); }
    std::vector<int> missing() const {
      return complete() ? std::vector<int>() : requests.front()->missing();
    }
  };

  void run(int rank) {
    Waiter<Arena> waiter(arena, this->kernel, rank);
    auto& member = members[static_cast<std::size_t>(rank)];
    for (std::uint64_t sequence = 0; sequence < collective_case.count;) {
      for (std::uint64_t i = 0; i < collective_case.outstanding; ++i, ++sequence) {
        member.requests.push_back(std::make_unique<Request>(*this, rank, sequence));
        member.advance();
      }
      if (!collective_case.sleeps) {
        waiter.spin(member);
      } else if (!waiter.wait(member)) {
        member.failed = true;
        member.cause = waiter.cause();
        return;
      }
    }
    if (collective_case.leaves) host::set_left(arena, rank);
  }

  void finish() {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& member = members[static_cast<std::size_t>(rank)];
      if (!member.failed) continue;
      expect(settings.victim >= 0 && this->kernel.is_dead(settings.victim), "failed without cause");
      expect(member.cause == settings.victim, "wrong cause of the failure");
    }
  }

  Arena arena;
  std::array<std::array<Data, 2>, ranks> buffers;
  std::array<Member, ranks> members;
};

}  // namespace lockstep::testing
