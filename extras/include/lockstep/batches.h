#pragma once

#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"

namespace lockstep::inline v0_2 {

namespace detail {

/// The batches of a callable as a dataset and its sampler, which share a pass. get_batch() returns
/// one batch, or none after the end of the pass. The sampler's indices number the batches.
template <class Batch, class Loader>
struct CalledLoader {
  using BatchType = std::vector<Batch>;
  using BatchRequestType = std::vector<std::size_t>;

  BatchType get_batch(c10::ArrayRef<std::size_t>) {
    BatchType one;
    if (std::exchange(*ended, true)) return one;
    // A false result ends the pass, and so does an exception.
    *ended = !std::invoke(*loader, one.emplace_back());
    if (*ended) one.clear();
    return one;
  }
  void reset() { *ended = false, number = 0; }
  std::optional<BatchRequestType> next(std::size_t) { return BatchRequestType{number++}; }

  Loader* loader;
  bool* ended;
  std::size_t number = 0;
};

/// Result of batches(). Each begin() starts a new pass.
template <class Batch, class Loader>
class Batches {
  using Called = CalledLoader<Batch, std::remove_reference_t<Loader>>;
  using Reader = PrefetchLoader<Called, Called>;

 public:
  using Iterator = RangeIterator<Batches, Batch>;

  Batches(Loader&& loader, const PrefetchOptions& options)
      : loader_(std::forward<Loader>(loader)),
        reader_({&loader_, &ended_}, {&loader_, &ended_}, checked(options)) {}

  Iterator begin() {
    position_.emplace(reader_.begin());
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend Iterator;

  Batch& peek() { return position_->peek().front(); }
  void count() {}
  void advance() { ++*position_; }
  bool ended() const { return *position_ == std::default_sentinel || position_->peek().empty(); }

  static PrefetchOptions checked(const PrefetchOptions& options) {
    if (options.workers <= 1 && options.batch_size == 1 && !options.drop_last) return options;
    throw InvalidArgument("batches: got several workers, batch_size or drop_last, expected none",
                          {.operation = "batches"});
  }

  Loader loader_;
  bool ended_ = false;
  std::optional<typename Reader::Iterator> position_;
  Reader reader_;  ///< last: its thread uses the other members
};

}  // namespace detail

/// The batches of a loader of the program's own, which puts the next batch into its argument and
/// returns whether there was one. They can be iterated, also with join_uneven() and
/// scatter_from_rank0().
///
///     for (auto& batch : lockstep::batches<Batch>(loader)) …  // was: while (loader(batch)) …
///
/// Each pass calls the loader until it returns false or throws. A pass after one that was left
/// early begins with the loader's next batch: after a pass of join_uneven(), which leaves the
/// loaders with more batches early, let them begin anew. Each call gets a new Batch. The loader
/// must not write to tensors of earlier batches, which may still be in use. A loader that is an
/// lvalue must outlive the result; a temporary is moved into it.
///
/// With PrefetchOptions::workers of 1, a thread calls the loader ahead of the program, up to depth
/// batches. Until the pass has ended or the result is destroyed, only that thread may use the
/// loader. If the program leaves a pass early, batches that were read ahead are lost. device and
/// pin_memory act as with PrefetchLoader.
/// Throws: InvalidArgument for more than 1 worker, for batch_size and drop_last that are not their
/// defaults, and as PrefetchLoader does. A DataError that names the batch, with the loader's
/// exception nested in it, when the iteration reaches that batch.
template <std::default_initializable Batch, class Loader>
requires std::predicate<Loader&, Batch&> detail::Batches<Batch, Loader> batches(
    Loader&& loader, PrefetchOptions options = {.workers = 0}) {
  return {std::forward<Loader>(loader), options};
}

}  // namespace lockstep
