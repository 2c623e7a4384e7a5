#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/group.h"
#include "lockstep/samplers.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

/// Tag for join_uneven(): iterate until the last rank has no batch left.
struct UntilLast {};
inline constexpr UntilLast until_last{};

namespace detail {

/// Agrees between all ranks whether there is a next iteration. The collective runs while the ranks
/// compute.
class NextTurn {
 public:
  /// op: min for iterations as long as all ranks have a batch, max as long as any rank has one.
  NextTurn(Group group, ReduceOp op);
  /// Waits for the collective even while an exception unwinds the stack. All ranks have issued it,
  /// so the wait is short. Without it, the abandoned collective would end the world before the
  /// rank's own error does.
  ~NextTurn();
  NextTurn(const NextTurn&) = delete;
  NextTurn& operator=(const NextTurn&) = delete;

  void ask(bool have_batch);
  bool answer();

 private:
  Group group_;
  ReduceOp op_;
  at::Tensor flag_;
  Work work_;
};

/// Result of join_uneven: a range to be iterated once.
template <class Loader, bool to_the_last>
class JoinUneven {
  using Position = decltype(std::begin(std::declval<Loader&>()));
  using End = decltype(std::end(std::declval<Loader&>()));
  using Batch = std::remove_cvref_t<decltype(*std::declval<Position&>())>;
  using Shown = std::conditional_t<to_the_last, std::optional<Batch>, Batch>;

 public:
  using Iterator = RangeIterator<JoinUneven, Shown>;

  JoinUneven(Loader& loader, const Group& group)
      : loader_(loader), turn_(group, to_the_last ? ReduceOp::max : ReduceOp::min) {}

  Iterator begin() {
    position_.emplace(std::begin(loader_));
    end_.emplace(std::end(loader_));
    look_ahead();
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend Iterator;

  Shown& peek() {
    if constexpr (to_the_last) {
      return current_;
    } else {
      return *current_;
    }
  }
  void count() {}
  bool ended() const { return ended_; }

  /// Moves to the batch that look_ahead() has read, if there is another iteration.
  void advance() {
    if (!turn_.answer()) {
      ended_ = true;
      current_.reset();
      drain();
      return;
    }
    current_ = std::move(next_);
    if (current_) ++*position_;
    look_ahead();
  }

  void look_ahead() {
    next_.reset();
    if (*position_ != *end_) next_.emplace(read());
    turn_.ask(next_.has_value());
  }

  /// Reads the batch without counting it as used, for loaders that count used samples.
  decltype(auto) read() {
    if constexpr (requires { position_->peek(); }) {
      return position_->peek();
    } else {
      return **position_;
    }
  }

  /// Reads the rest of the pass: torch::data's loader with workers cannot begin another pass before
  /// the end of this one.
  void drain() {
    if constexpr (requires {
                    { loader_.options().workers } -> std::convertible_to<std::size_t>;
                  }) {
      if (loader_.options().workers == 0) return;
      while (*position_ != *end_) ++*position_;
    }
  }

  Loader& loader_;
  NextTurn turn_;
  std::optional<Position> position_;
  std::optional<End> end_;
  std::optional<Batch> next_;
  std::optional<Batch> current_;
  bool ended_ = false;
};

}  // namespace detail

/// The batches of a loader, for ranks with unequal numbers of batches. Iteration ends on all ranks
/// together, as soon as one rank has no batch left; the other ranks skip their remaining batches.
///
///     for (auto& batch : lockstep::join_uneven(*loader, world)) …
///
/// Costs one collective of one byte per batch. It runs while the ranks compute, because the loader
/// is read one batch ahead. An exception in one rank's loop fails the other ranks as it would
/// without join_uneven().
/// Ranks: all, each with its own loader. If they leave the loop early, all must leave at the same
/// batch.
template <class Loader>
detail::JoinUneven<Loader, false> join_uneven(Loader& loader, const Group& group) {
  return {loader, group};
}

/// The same, until the last rank has no batch left. Yields std::optional<Batch>, which is empty on
/// a rank without batches left. In the example, such a rank takes part in the exchange with weight
/// 0.
///
///     for (auto& batch : lockstep::join_uneven(*loader, world, lockstep::until_last)) {
///       optimizer.weight(batch ? batch->target.size(0) : 0);
///       optimizer.backward_and_update(batch ? loss_of(*batch) : at::Tensor());
///     }
template <class Loader>
detail::JoinUneven<Loader, true> join_uneven(Loader& loader, const Group& group, UntilLast) {
  return {loader, group};
}

}  // namespace lockstep
