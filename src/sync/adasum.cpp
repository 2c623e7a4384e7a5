#include <ATen/core/grad_mode.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/strategies.h"
#include "sync/bucket_layout.h"
#include "sync/host_exchange.h"

namespace lockstep::inline v0_2 {
namespace {

/// Two ranks whose changes are combined. The result replaces the left one's.
struct Pair {
  int left;
  int right;
};

/// Appends the pairs of a binary tree over ranks [first, first + count) to levels, leaves first.
/// Returns the height of the tree.
std::size_t plan_pairs(int first, int count, std::vector<std::vector<Pair>>& levels) {
  if (count < 2) return 0;
  const int left = (count + 1) / 2;
  const auto level =
      std::max(plan_pairs(first, left, levels), plan_pairs(first + left, count - left, levels));
  if (levels.size() <= level) levels.resize(level + 1);
  levels[level].push_back({.left = first, .right = first + left});
  return level + 1;
}

/// Scalar products of two changes a and b.
struct Products {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

/// Every rank has one segment of all ranks' changes, so that each level of the tree exchanges only
/// scalar products.
template <class T>
class AdasumExchange final : public Exchange {
 public:
  AdasumExchange(SyncTarget of, const Bucket& bucket) : of_(of), layout_(bucket) {
    if (of_ == SyncTarget::gradients) return;
    saved_parameters_ = at::zeros_like(bucket.values());
    save_parameters(bucket);
  }

  void before_update(std::int64_t, const Bucket& bucket) override { save_parameters(bucket); }

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    if (group.size() == 1) co_return;
    const auto& values = bucket.values();
    allocate_buffers(bucket, group);
    auto change = changes_.narrow(0, 0, values.numel());
    if (of_ == SyncTarget::gradients) {
      change.copy_(values);
    } else {
      at::sub_out(change, values, saved_parameters_);
    }
    co_await group.all_to_all(segments_, changes_);
    for (const auto& level : levels_) {
      compute_products(level);
      co_await group.all_reduce(products_, ReduceOp::sum);
      combine(level);
    }
    co_await group.all_gather(changes_, segments_.narrow(0, 0, segment_));
    if (of_ == SyncTarget::gradients) {
      values.copy_(change);
    } else {
      saved_parameters_.add_(change);
      values.copy_(saved_parameters_);
    }
  }

 private:
  void save_parameters(const Bucket& bucket) {
    const at::NoGradGuard no_grad;
    for (const auto& slice : bucket.slices()) {
      saved_parameters_
          .as_strided(slice.values.sizes(), slice.values.strides(),
                      static_cast<std::int64_t>(slice.offset))
          .copy_(slice.parameter);
    }
  }

  void allocate_buffers(const Bucket& bucket, const Group& group) {
    if (changes_.defined()) return;
    const auto ranks = static_cast<std::int64_t>(group.size());
    segment_ = (bucket.values().numel() + ranks - 1) / ranks;
    rank_ = group.rank();
    changes_ = group.empty({segment_ * ranks}, bucket.values().scalar_type());
    segments_ = group.empty({segment_ * ranks}, bucket.values().scalar_type());
    changes_.zero_();
    plan_pairs(0, group.size(), levels_);
    std::size_t max_pairs = 0;
    for (const auto& level : levels_) max_pairs = std::max(max_pairs, level.size());
    products_ = group.empty({static_cast<std::int64_t>(max_pairs * layout_.parts().size() *
                                                       sizeof(Products) / sizeof(double))},
                            at::kDouble);
  }

  std::span<T> segment_of(int rank) const {
    return detail::elements<T>(segments_).subspan(static_cast<std::size_t>(rank * segment_),
                                                  static_cast<std::size_t>(segment_));
  }

  /// Calls fn(a, b, products) with the changes of each part in this rank's segment, for each pair.
  template <class Fn>
  void for_each_part(const std::vector<Pair>& level, const Fn& fn) const {
    const auto begin = static_cast<std::size_t>(segment_ * rank_);
    const auto end = begin + static_cast<std::size_t>(segment_);
    auto* products = static_cast<Products*>(products_.data_ptr());
    for (const auto& [left, right] : level) {
      const auto a = segment_of(left);
      const auto b = segment_of(right);
      for (const auto& part : layout_.parts()) {
        const auto from = std::max(begin, part.offset);
        const auto to = std::min(end, part.offset + part.numel);
        auto& own = *products++;
        if (from < to)
          fn(a.subspan(from - begin, to - from), b.subspan(from - begin, to - from), own);
      }
    }
  }

  void compute_products(const std::vector<Pair>& level) {
    products_.zero_();
    for_each_part(level, [](std::span<const T> a, std::span<const T> b, Products& products) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        const auto x = static_cast<double>(a[i]);
        const auto y = static_cast<double>(b[i]);
        products.ab += x * y;
        products.aa += x * x;
        products.bb += y * y;
      }
    });
  }

  void combine(const std::vector<Pair>& level) {
    const auto factor = [](double ab, double square) {
      return static_cast<T>(square > 0 ? 1 - ab / (2 * square) : 1);
    };
    for_each_part(level, [&](std::span<T> a, std::span<const T> b, const Products& products) {
      const T of_a = factor(products.ab, products.aa);
      const T of_b = factor(products.ab, products.bb);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = of_a * a[i] + of_b * b[i];
    });
  }

  SyncTarget of_;
  detail::Layout layout_;
  at::Tensor saved_parameters_;  ///< before the update; the same on every rank. None of gradients
  at::Tensor changes_;           ///< this rank's change, then the combined change
  at::Tensor segments_;          ///< this rank's part of every rank's change
  at::Tensor products_;          ///< per pair of a level and part
  std::vector<std::vector<Pair>> levels_;
  std::int64_t segment_ = 0;
  int rank_ = 0;
};

}  // namespace

std::unique_ptr<Exchange> Adasum::exchange(const Bucket& bucket) const {
  check();
  averaging::expect_dtype("adasum", detail::averaged(bucket), {DType::f32, DType::f64});
  return detail::exchange_on_cpu(bucket, [this](const Bucket& host) -> std::unique_ptr<Exchange> {
    if (host.values().scalar_type() == at::kDouble) {
      return std::make_unique<AdasumExchange<double>>(of, host);
    }
    return std::make_unique<AdasumExchange<float>>(of, host);
  });
}

}  // namespace lockstep
