#pragma once

#include <torch/data/example.h>

#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/group.h"

namespace lockstep {

namespace detail {

/// Gives rank 0's next batch, or nothing at the end.
using BatchSource = std::function<std::optional<torch::data::Example<>>()>;

[[noreturn]] void refuse_no_loader();

/// What scatter_from_rank0 returns: a range to be iterated once.
class ScatteredBatches {
 public:
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = torch::data::Example<>;
    using reference = value_type&;
    using pointer = value_type*;
    using iterator_category = std::input_iterator_tag;

    explicit Iterator(ScatteredBatches& range) : range_(&range) {}
    value_type& operator*() const { return *range_->current_; }
    value_type* operator->() const { return &*range_->current_; }
    Iterator& operator++() {
      range_->advance();
      return *this;
    }
    void operator++(int) { range_->advance(); }
    bool operator==(std::default_sentinel_t) const { return !range_->current_; }

   private:
    ScatteredBatches* range_;
  };

  ScatteredBatches(BatchSource source, Group group)
      : source_(std::move(source)), group_(std::move(group)) {}

  Iterator begin() {
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  void advance();

  BatchSource source_;
  Group group_;
  std::optional<torch::data::Example<>> current_;
};

}  // namespace detail

/// Deals the batches of rank 0's loader to all ranks, where rank 0 alone can read the data: of B
/// rows, rank r gets those from floor(r·B/N) up to floor((r+1)·B/N), perhaps none. loader is that
/// of rank 0, and not looked at elsewhere.
///
///     for (auto& batch : lockstep::scatter_from_rank0(loader.get(), world)) …
///
/// Shapes: data and target of rank 0's batches have equal first dimensions, and at most 8.
/// Ranks: all; they leave the loop early all at the same batch.
/// Throws: what rank 0's loader threw, on rank 0; a DataError that says it, on the others. The
/// group stays usable.
template <class Loader>
detail::ScatteredBatches scatter_from_rank0(Loader* loader, const Group& group) {
  detail::BatchSource source;
  if (group.rank() == 0) {
    using Position = decltype(std::begin(*loader));
    source = [loader,
              position =
                  std::optional<Position>()]() mutable -> std::optional<torch::data::Example<>> {
      if (loader == nullptr) detail::refuse_no_loader();
      position ? void(++*position) : void(position.emplace(std::begin(*loader)));
      if (*position == std::end(*loader)) return std::nullopt;
      return **position;
    };
  }
  return {std::move(source), group};
}

}  // namespace lockstep
