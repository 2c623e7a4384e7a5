#pragma once

#include <cstddef>
#include <new>

#include "tests/protocol/relacy_atomics.h"

namespace lockstep::testing {

/// Sizes of a block whose slots and chunks hold `segments` numbers.
template <std::uint64_t entries, std::size_t segments>
struct SmallSizes {
  using Data = std::array<RelacyAtomics::Plain<int>, segments>;
  static constexpr std::uint64_t ring = entries;
  static constexpr std::size_t eager_bytes = host::round_up(sizeof(Data), host::cache_line);
  static constexpr std::size_t chunk_bytes = eager_bytes;
  static constexpr std::size_t chunks = 2;
};

/// Calls visit with a pointer to each object of a block.
template <class Block>
void for_each_object(const Block& block, const auto& visit) {
  using Data = typename Block::Data;
  visit(&block.attached());
  for (int member = 0; member < block.members(); ++member) {
    visit(&block.staged(member));
    visit(&block.finished(member));
    visit(&block.membership(member));
    for (std::uint64_t i = 0; i < Block::ring; ++i) {
      visit(&block.entry(member, i));
      visit(reinterpret_cast<Data*>(block.slot(member, i)));
    }
    for (std::uint64_t i = 0; i < Block::chunks; ++i) {
      visit(reinterpret_cast<Data*>(block.chunk(member, i)));
    }
    for (int to = 0; to < block.members(); ++to) visit(&block.mailbox(member, to));
  }
}

/// The memory of a world of few ranks, with one group.
template <int ranks, class BlockType>
class SmallArena {
 public:
  using Atomics = RelacyAtomics;
  using Block = BlockType;

  SmallArena() : block_(memory(), ranks) {
    for_each_object(block_, []<class T>(T* object) { new (object) T(); });
  }
  ~SmallArena() {
    for_each_object(block_, []<class T>(T* object) { object->~T(); });
  }
  SmallArena(const SmallArena&) = delete;
  SmallArena& operator=(const SmallArena&) = delete;

  int size() const { return ranks; }
  host::BasicHeader<Atomics>& header() const { return header_; }
  host::BasicRankState<Atomics>& rank(int rank) const {
    return states_[static_cast<std::size_t>(rank)];
  }
  const Block& block() const { return block_; }

  mutable int failure_writer = -1;  ///< the rank that began to write the failure

 private:
  static std::byte* memory() {
    static auto* const memory =
        static_cast<std::byte*>(::operator new (Block::bytes(ranks), std::align_val_t{host::page}));
    return memory;
  }

  mutable host::BasicHeader<Atomics> header_;
  mutable std::array<host::BasicRankState<Atomics>, ranks> states_;
  Block block_;
};

inline void expect(bool holds, const char* what) {
  if (!holds) fail_test(what);
}

/// Base of a scenario, which one object is for each interleaving. It has run(rank), and may have
/// finish(), which is called after all ranks have ended.
template <class Derived, int rank_count>
struct Scenario : rl::test_suite<Derived, rank_count> {
  static constexpr int ranks = rank_count;

  Scenario() { take_memory_from_the_system(); }

  void thread(unsigned rank) {
    kernel.run(static_cast<int>(rank), [&] { derived().run(static_cast<int>(rank)); });
  }
  void after() {
    if constexpr (requires(Derived & one) { one.finish(); }) derived().finish();
  }

  Kernel kernel;

 private:
  /// Relacy chooses at each delete whether the memory is used again. The protocol allocates none.
  static void take_memory_from_the_system() {
    struct Opened : rl::context {
      static int rl::context::*of() { return &Opened::disable_alloc_; }
    };
    rl::ctx().*Opened::of() = 1;
  }
  Derived& derived() { return static_cast<Derived&>(*this); }
};

}  // namespace lockstep::testing
