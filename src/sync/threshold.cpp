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
#include "sync/residual.h"
#include "sync/sparse.h"

namespace lockstep::inline v0_2 {
namespace {

template <class T>
class AboveMean final : public Exchange {
 public:
  AboveMean(const Threshold& recipe, const Bucket& bucket)
      : threshold_(static_cast<T>(recipe.value)),
        layout_(bucket),
        most_(bucket.values().nbytes() / Record::element_bytes),
        residual_(recipe.error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    make_room(group);
    select(bucket);
    co_await group.all_gather(counts_, count_);
    refuse_not_finite(group.size());
    if (goes_dense(group.size())) {
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

  /// A rank's message about its picks.
  struct Count {
    std::int64_t picks;
    std::int64_t not_finite;  ///< 1 + the index of the first element that is not, or 0
  };

  void make_room(const Group& group) {
    if (counts_.defined()) return;
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t room = most_ + kernels::select_slack;
    indices_.resize(room);
    sent_ = detail::bytes_in(group, Record::bytes(room));
    // Every rank's record may be padded by less than eight bytes.
    gathered_ = detail::bytes_in(group, Record::bytes(most_) + 8 * ranks);
    count_ = group.empty({2}, at::kLong);
    counts_ = group.empty({2 * group.size()}, at::kLong);
    record_bytes_.resize(ranks);
  }

  void select(Bucket& bucket) {
    const auto gradient = detail::elements<T>(bucket.values());
    const auto picks = room();
    const auto found = residual_.kept()
                           ? kernels::move_and_select_above(
                                 gradient, residual_.template elements<T>(), threshold_, picks)
                           : kernels::select_above<T>(gradient, threshold_, picks);
    auto& count = *static_cast<Count*>(count_.data_ptr());
    count.picks = static_cast<std::int64_t>(found);
    count.not_finite = 0;
    if (found <= most_) {
      if (const auto bad = detail::first_not_finite<T>(picks.values.first(found))) {
        count.not_finite = 1 + static_cast<std::int64_t>(picks.indices[*bad]);
      }
    } else if (const auto bad = detail::first_not_finite<T>(source(gradient))) {
      count.not_finite = 1 + static_cast<std::int64_t>(*bad);
    }
  }

  /// The values that elements are picked from.
  std::span<const T> source(std::span<const T> gradient) const {
    return residual_.kept() ? residual_.template elements<T>() : gradient;
  }

  kernels::Picks<T> room() {
    return {.indices = indices_,
            .values = {reinterpret_cast<T*>(detail::memory_of(sent_)), indices_.size()}};
  }

  std::span<const Count> counts(int ranks) const {
    return {static_cast<const Count*>(counts_.data_ptr()), static_cast<std::size_t>(ranks)};
  }

  void refuse_not_finite(int ranks) {
    const auto all = counts(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto bad = all[static_cast<std::size_t>(rank)].not_finite;
      if (bad == 0) continue;
      residual_.drop_not_finite();
      detail::refuse_not_finite("threshold", layout_.name_at(static_cast<std::size_t>(bad - 1)),
                                rank);
    }
  }

  bool goes_dense(int ranks) const {
    std::size_t total = 0;
    for (const auto& count : counts(ranks)) total += static_cast<std::size_t>(count.picks);
    return total > most_;
  }

  /// Lays this rank's picks out as they are sent. Returns the bytes of all ranks' picks.
  std::int64_t pack_picks(Bucket& bucket, const Group& group) {
    std::size_t total = 0;
    const auto all = counts(group.size());
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
    for (const auto& count : counts(ranks)) {
      const auto number = static_cast<std::size_t>(count.picks);
      const auto picks = Record::at(record, number);
      kernels::scatter_add<T>(gradient, picks.indices, picks.values, share);
      record += Record::bytes(number);
    }
  }

  T threshold_;
  detail::Layout layout_;
  std::size_t most_;  ///< picks of all ranks together that are not more than the bucket
  detail::Residual residual_;
  std::vector<std::uint32_t> indices_;
  at::Tensor sent_;
  at::Tensor gathered_;
  at::Tensor count_;
  at::Tensor counts_;
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
  if (bucket.values().scalar_type() == at::kDouble) {
    return std::make_unique<AboveMean<double>>(*this, bucket);
  }
  // 0 would send everything.
  const bool is_zero = detail::magnitude(value) == 0;
  detail::expect(is_zero || static_cast<float>(value) > 0, "threshold", "value", value,
                 flushes_denormals() ? "0, or 1.18e-38 or more, as denormals are flushed"
                                     : "0, or what float32 can hold");
  return std::make_unique<AboveMean<float>>(*this, bucket);
}

}  // namespace lockstep
