#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/magnitude.h"
#include "kernels/scatter_add.h"
#include "kernels/select_largest.h"
#include "lockstep/denormals.h"
#include "lockstep/strategies.h"
#include "sync/bucket_layout.h"
#include "sync/fields.h"
#include "sync/host_exchange.h"
#include "sync/residual.h"
#include "sync/sparse.h"

namespace lockstep::inline v0_2 {
namespace {

template <class T>
class ThresholdExchange final : public Exchange {
 public:
  ThresholdExchange(const Threshold& recipe, const Bucket& bucket)
      : threshold_(static_cast<T>(recipe.value)),
        layout_(bucket),
        max_picks_(bucket.values().nbytes() / Record::element_bytes),
        residual_(recipe.error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    allocate_buffers(group);
    select(bucket);
    co_await group.all_gather(reports_, report_);
    refuse_not_finite(group.size());
    if (sends_dense(group.size())) {
      if (residual_.kept()) {
        bucket.values().copy_(residual_.values());
        residual_.values().zero_();
      }
      co_await group.all_reduce(bucket.values(), ReduceOp::avg);
    } else {
      const auto total = pack_picks(bucket, group);
      const auto mine =
          static_cast<std::int64_t>(record_bytes_[static_cast<std::size_t>(group.rank())]);
      co_await group.all_gather(gathered_.narrow(0, 0, total), sent_.narrow(0, 0, mine),
                                record_bytes_);
      add_picks(bucket, group.size());
    }
  }

  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  using Record = detail::SparseRecord<T>;

  /// A rank's message before its picks.
  struct Report {
    std::int64_t picks;
    std::int64_t not_finite;  ///< 1 + the index of the first element that is not finite, or 0
  };

  void allocate_buffers(const Group& group) {
    if (reports_.defined()) return;
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t capacity = max_picks_ + kernels::select_slack;
    indices_.resize(capacity);
    sent_ = detail::bytes_in(group, Record::bytes(capacity));
    // Every rank's record may be padded by less than eight bytes.
    gathered_ = detail::bytes_in(group, Record::bytes(max_picks_) + 8 * ranks);
    report_ = group.empty({2}, at::kLong);
    reports_ = group.empty({2 * group.size()}, at::kLong);
    record_bytes_.resize(ranks);
  }

  void select(Bucket& bucket) {
    const auto gradient = detail::elements<T>(bucket.values());
    const auto picks = pick_buffers();
    const auto found = residual_.kept()
                           ? kernels::move_and_select_above(
                                 gradient, residual_.template elements<T>(), threshold_, picks)
                           : kernels::select_above<T>(gradient, threshold_, picks);
    auto& report = *static_cast<Report*>(report_.data_ptr());
    report.picks = static_cast<std::int64_t>(found);
    report.not_finite = 0;
    if (found <= max_picks_) {
      if (const auto bad = detail::first_not_finite<T>(picks.values.first(found))) {
        report.not_finite = 1 + static_cast<std::int64_t>(picks.indices[*bad]);
      }
    } else if (const auto bad = detail::first_not_finite<T>(source(gradient))) {
      report.not_finite = 1 + static_cast<std::int64_t>(*bad);
    }
  }

  /// The values that elements are selected from.
  std::span<const T> source(std::span<const T> gradient) const {
    return residual_.kept() ? residual_.template elements<T>() : gradient;
  }

  kernels::Picks<T> pick_buffers() {
    return {.indices = indices_,
            .values = {reinterpret_cast<T*>(detail::memory_of(sent_)), indices_.size()}};
  }

  std::span<const Report> reports(int ranks) const {
    return {static_cast<const Report*>(reports_.data_ptr()), static_cast<std::size_t>(ranks)};
  }

  void refuse_not_finite(int ranks) {
    const auto all = reports(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto bad = all[static_cast<std::size_t>(rank)].not_finite;
      if (bad == 0) continue;
      residual_.drop_not_finite();
      detail::refuse_not_finite("threshold", layout_.name_at(static_cast<std::size_t>(bad - 1)),
                                rank);
    }
  }

  bool sends_dense(int ranks) const {
    std::size_t total = 0;
    for (const auto& report : reports(ranks)) total += static_cast<std::size_t>(report.picks);
    return total > max_picks_;
  }

  /// Writes this rank's record. Returns the bytes of all ranks' records.
  std::int64_t pack_picks(Bucket& bucket, const Group& group) {
    std::size_t total = 0;
    const auto all = reports(group.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      record_bytes_[rank] = Record::bytes(static_cast<std::size_t>(all[rank].picks));
      total += record_bytes_[rank];
    }
    const auto mine = static_cast<std::size_t>(group.rank());
    const auto count = static_cast<std::size_t>(all[mine].picks);
    const auto record = Record::at(detail::memory_of(sent_), count);
    std::copy_n(indices_.begin(), count, record.indices.begin());
    if (residual_.kept()) {
      const auto residual = residual_.template elements<T>();
      for (const auto index : record.indices) residual[index] = 0;
    } else {
      bucket.values().zero_();
    }
    return static_cast<std::int64_t>(total);
  }

  void add_picks(Bucket& bucket, int ranks) {
    const auto gradient = detail::elements<T>(bucket.values());
    const T share = T{1} / static_cast<T>(ranks);
    auto* record = detail::memory_of(gathered_);
    for (const auto& report : reports(ranks)) {
      const auto number = static_cast<std::size_t>(report.picks);
      const auto picks = Record::at(record, number);
      kernels::scatter_add<T>(gradient, picks.indices, picks.values, share);
      record += Record::bytes(number);
    }
  }

  T threshold_;
  detail::Layout layout_;
  std::size_t max_picks_;  ///< with more picks on all ranks, the dense bucket is smaller
  detail::Residual residual_;
  std::vector<std::uint32_t> indices_;
  at::Tensor sent_;
  at::Tensor gathered_;
  at::Tensor report_;
  at::Tensor reports_;
  std::vector<std::size_t> record_bytes_;
};

}  // namespace

std::string Threshold::text() const {
  return "threshold:" + detail::shortest(value) + (error_feedback ? "" : ",feedback=off");
}

void Threshold::check() const {
  detail::expect(value >= 0, "threshold", "value", value, "0 or more");
}

std::unique_ptr<Exchange> Threshold::exchange(const Bucket& bucket) const {
  check();
  detail::expect_dtype("threshold", bucket, {at::kFloat, at::kDouble});
  if (detail::is_on_device(bucket)) {
    return detail::exchange_on_host(bucket, [this](const Bucket& host) { return exchange(host); });
  }
  if (bucket.values().scalar_type() == at::kDouble) {
    return std::make_unique<ThresholdExchange<double>>(*this, bucket);
  }
  // A threshold that rounds to 0 would send every element.
  const bool is_zero = detail::magnitude(value) == 0;
  detail::expect(is_zero || static_cast<float>(value) > 0, "threshold", "value", value,
                 flushes_denormals() ? "0, or 1.18e-38 or more, because denormals are flushed"
                                     : "0, or a positive float32 number");
  return std::make_unique<ThresholdExchange<float>>(*this, bucket);
}

}  // namespace lockstep
