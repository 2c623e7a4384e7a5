#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

/// Asks join_uneven to go on until the last rank has run out.
struct UntilLast {};
inline constexpr UntilLast until_last{};

namespace detail {

/// One question to all ranks at a time, answered while they compute: whether there is a next turn.
class NextTurn {
 public:
  /// min: as long as all ranks have a batch. max: as long as any has.
  NextTurn(Group group, ReduceOp op);
  /// Waits even while an exception unwinds the stack. All ranks issue this collective before they
  /// compute. A rank that did not wait for it would fail with its error instead of the rank's own.
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
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = Shown;
    using reference = Shown&;
    using pointer = Shown*;
    using iterator_category = std::input_iterator_tag;

    explicit Iterator(JoinUneven& range) : range_(&range) {}
    Shown& operator*() const {
      if constexpr (to_the_last) {
        return range_->current_;
      } else {
        return *range_->current_;
      }
    }
    Shown* operator->() const { return &**this; }
    Iterator& operator++() {
      range_->advance();
      return *this;
    }
    void operator++(int) { range_->advance(); }
    bool operator==(std::default_sentinel_t) const { return range_->ended_; }

   private:
    JoinUneven* range_;
  };

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
  /// Goes to the batch that was looked at, if there is another turn.
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
    if (*position_ != *end_) next_.emplace(peek());
    turn_.ask(next_.has_value());
  }

  /// Of a loader that counts what it has given, without its counting.
  decltype(auto) peek() {
    if constexpr (requires { position_->peek(); }) {
      return position_->peek();
    } else {
      return **position_;
    }
  }

  /// A loader with workers that is left before its end cannot begin another pass.
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

/// The batches of a loader, ending on all ranks together: as soon as one rank has no batch left,
/// the others leave theirs. For ranks that may hold unequal numbers of batches.
///
///     for (auto& batch : lockstep::join_uneven(*loader, world)) …
///
/// Costs a collective of one byte a batch, which runs while the ranks compute: the loader is read
/// one batch ahead. An exception in one rank's loop fails the other ranks as it would without
/// join_uneven.
/// Ranks: all, each over a range of its own; they leave the loop early all at the same batch.
template <class Loader>
detail::JoinUneven<Loader, false> join_uneven(Loader& loader, const Group& group) {
  return {loader, group};
}

/// The same, going on until the last rank has no batch left. Yields std::optional<Batch>, empty on
/// a rank that has run out. Such a rank takes part in the others' exchanges without contributing to
/// them.
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
