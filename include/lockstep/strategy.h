#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2 {

namespace detail {

template <class R>
concept HasTarget = requires(const R& recipe, std::int64_t step, std::size_t bucket) {
  { recipe.target(step, bucket, bucket) } -> std::same_as<SyncTarget>;
};

}  // namespace detail

/// The options of a strategy: a copyable value with a text form, which creates the Exchange of a
/// bucket.
template <class R>
concept Recipe = std::copy_constructible<R> && requires(const R& recipe, const Bucket& bucket) {
  { recipe.text() } -> std::convertible_to<std::string>;
  { recipe.exchange(bucket) } -> std::convertible_to<std::unique_ptr<Exchange>>;
};

/// How ranks synchronise: a value that holds any Recipe. A recipe may have five more functions:
/// - `SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const`, a pure
/// function, selects what a bucket synchronises at a step. Without it, gradients are exchanged at
/// every step.
/// - `bool exchanges_every_gradient() const` is for a recipe with target() that may exchange every
/// gradient at every step.
/// - `bool exchanges_parameters() const` is for a recipe with target() that never selects
/// parameters.
/// - `bool takes_weights() const` is for a recipe that exchanges every gradient and does not
/// average them.
/// - `void check() const` throws InvalidArgument for options that are out of range. Only
/// parse_strategy() calls it, for the strategies that it knows. A recipe of your own checks its
/// options in exchange().
class Strategy {
 public:
  template <class R>
  requires(!std::same_as<std::remove_cvref_t<R>, Strategy> && Recipe<std::remove_cvref_t<R>>)
      Strategy(R&& recipe)  // NOLINT(google-explicit-constructor): a recipe is a strategy
      : held_(std::make_shared<Held<std::remove_cvref_t<R>>>(std::forward<R>(recipe))) {}

  /// The text form for command lines and logs, such as "fp32". parse_strategy() parses it.
  std::string text() const { return held_->text(); }

  /// Creates the Exchange of this strategy for one bucket.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const { return held_->exchange(bucket); }

  /// What the bucket with this index synchronises at a step; buckets is the number of buckets.
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
    return held_->target(step, bucket, buckets);
  }

  /// Whether every step exchanges the gradients of every bucket, and no step exchanges parameters.
  bool exchanges_every_gradient() const { return held_->exchanges_every_gradient(); }

  /// Whether a step may exchange parameters. Such a strategy needs the optimizer's steps.
  bool exchanges_parameters() const { return held_->exchanges_parameters(); }

  /// Whether every step averages every gradient, so that ranks can have weights
  /// (DistributedDataParallel::weight()).
  bool takes_weights() const { return held_->takes_weights(); }

 private:
  struct Holder {
    virtual ~Holder() = default;
    virtual std::string text() const = 0;
    virtual std::unique_ptr<Exchange> exchange(const Bucket& bucket) const = 0;
    virtual SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const = 0;
    virtual bool exchanges_every_gradient() const = 0;
    virtual bool exchanges_parameters() const = 0;
    virtual bool takes_weights() const = 0;
  };

  template <class R>
  struct Held final : Holder {
    template <class From>
    explicit Held(From&& from) : recipe(std::forward<From>(from)) {}

    std::string text() const override { return recipe.text(); }
    std::unique_ptr<Exchange> exchange(const Bucket& bucket) const override {
      return recipe.exchange(bucket);
    }
    SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const override {
      if constexpr (detail::HasTarget<R>) {
        return recipe.target(step, bucket, buckets);
      } else {
        return SyncTarget::gradients;
      }
    }
    bool exchanges_every_gradient() const override {
      if constexpr (requires { recipe.exchanges_every_gradient(); }) {
        return recipe.exchanges_every_gradient();
      } else {
        return !detail::HasTarget<R>;
      }
    }
    bool exchanges_parameters() const override {
      if constexpr (requires { recipe.exchanges_parameters(); }) {
        return recipe.exchanges_parameters();
      } else {
        return detail::HasTarget<R>;
      }
    }
    bool takes_weights() const override {
      if constexpr (requires { recipe.takes_weights(); }) {
        return recipe.takes_weights();
      } else {
        return exchanges_every_gradient();
      }
    }

    R recipe;
  };

  std::shared_ptr<const Holder> held_;
};

/// Parses the text form of one of Lockstep's strategies, a name with options: "fp32", "topk:0.01",
/// "fp16:clip=100", "local_sgd:period=8", "warmup:100:topk:0.01". Also accepts SINGA's names
/// (plain, half, sparseTopK, sparseThreshold, partialUpdate) and powersgd, the name of power_sgd
/// before version 0.2.
/// Throws: InvalidArgument listing the valid names or fields, or for a value out of its range.
Strategy parse_strategy(std::string_view text);

}  // namespace lockstep
