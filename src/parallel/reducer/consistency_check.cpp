#include "parallel/reducer/consistency_check.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "core/log.h"
#include "core/numeric/digest.h"
#include "core/text.h"
#include "group/instances.h"
#include "group/tensors.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/reducer/sparse_gradients.h"

namespace lockstep::inline v0_2::detail {

std::uint64_t checksum(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse) {
    const auto sum = tensor.detach().coalesce();
    const std::array parts{checksum(sum._indices()), checksum(sum._values())};
    return digest(std::as_bytes(std::span(parts)));
  }
  const auto values = tensor.detach().to(at::kCPU);
  const bool is_readable = values.is_non_overlapping_and_dense() && has_values_in_memory(values);
  const auto dense = is_readable ? values : values.clone(at::MemoryFormat::Contiguous);
  return digest({static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()});
}

namespace {

/// The element at an offset in memory from the first. Units: elements.
double at_offset(const at::Tensor& tensor, std::int64_t offset) {
  return tensor.scalar_type() == at::kDouble ? tensor.const_data_ptr<double>()[offset]
                                             : tensor.const_data_ptr<float>()[offset];
}

/// Converts the memory offset of an element of a dense tensor to that in a tensor of equal sizes.
std::int64_t offset_in(const at::Tensor& tensor, const at::Tensor& dense, std::int64_t offset) {
  std::int64_t result = 0;
  for (std::int64_t dim = 0; dim < dense.dim(); ++dim) {
    if (dense.size(dim) > 1) {
      result += offset / dense.stride(dim) % dense.size(dim) * tensor.stride(dim);
    }
  }
  return result;
}

bool is_like(const at::Tensor& mean, const at::Tensor& other) {
  return other.defined() && other.layout() == at::kStrided && other.sizes() == mean.sizes() &&
         other.scalar_type() == mean.scalar_type() && has_values_in_memory(other);
}

}  // namespace

void MeanProbe::set(const at::Tensor& mean) {
  reset();
  if (!mean.is_cpu()) return;  // to read a device's memory, every step would wait for the device
  const auto find = [&]<class T>(const T* values) {
    for (std::int64_t i = 0, end = mean.numel(); i < end && count_ < 2; ++i) {
      if (values[i] == 0) continue;
      elements_[static_cast<std::size_t>(count_++)] = {.offset = i, .value = values[i]};
    }
  };
  mean.scalar_type() == at::kDouble ? find(mean.const_data_ptr<double>())
                                    : find(mean.const_data_ptr<float>());
}

bool MeanProbe::was_added_to(const at::Tensor& mean, const at::Tensor& gradient,
                             const at::Tensor& incoming, bool only_added) const {
  if (count_ < (only_added ? 1 : 2) || !is_like(mean, gradient) || !is_like(mean, incoming))
    return false;
  const double rounding = 4 * (mean.scalar_type() == at::kDouble
                                   ? std::numeric_limits<double>::epsilon()
                                   : static_cast<double>(std::numeric_limits<float>::epsilon()));
  std::array<double, 2> factors{};
  std::array<double, 2> uncertainty{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(count_); ++i) {
    const auto [offset, value] = elements_[i];
    const double now = at_offset(gradient, offset_in(gradient, mean, offset));
    const double added = at_offset(incoming, offset_in(incoming, mean, offset));
    factors[i] = (now - added) / value;
    uncertainty[i] = rounding * (std::abs(now) + std::abs(added)) / std::abs(value);
    // NaN compares false and must return false.
    if (!(factors[i] > uncertainty[i] && factors[i] <= 1 + uncertainty[i] + rounding)) return false;
  }
  return count_ < 2 ||
         std::abs(factors[0] - factors[1]) <= uncertainty[0] + uncertainty[1] + rounding;
}

Compared<std::uint64_t> ConsistencyCheck::begin(std::int64_t step, const BucketReducers& reducers,
                                                const SparseGradients& sparse) {
  compared_.clear();
  if (every_ == 0 || step % every_ != 0) return Compared<std::uint64_t>::none();
  const auto turns = reducers.size() + sparse.size();
  bucket_ = static_cast<std::size_t>(step / every_) % turns;
  if (bucket_ < reducers.size()) {
    for (const auto& slice : reducers.all()[bucket_].bucket.slices())
      compared_.emplace_back(slice.name, checksum(slice.parameter));
  } else {
    const auto index = bucket_ - reducers.size();
    compared_.emplace_back(sparse.name_of(index), sparse.checksum_of_rows(index));
  }
  std::vector<std::uint64_t> checksums;
  for (const auto& [name, checksum] : compared_) checksums.push_back(checksum);
  return Compared(digest(std::as_bytes(std::span(checksums))));
}

void ConsistencyCheck::check(std::int64_t step, const Compared<std::uint64_t>& maxima) const {
  if (compared_.empty() || maxima.is_equal()) return;
  std::vector<std::string> lines;
  for (const auto& [name, checksum] : compared_) {
    lines.push_back(concat("parameter ", name, " with checksum ", std::hex, checksum));
  }
  const auto found = difference(group_.host().communicator(), lines);
  throw ReplicaError(
      at_rank(
          "consistency check", group_, "parameters differ between ranks at step ", step,
          ", in bucket ", bucket_, ": ", found ? found->text : "no single parameter differs",
          ". Likely causes: a step with gradients that were not averaged (accumulated under "
          "no_sync(), a model called without its wrapper after torch::load() or to(), gradients "
          "changed on one rank), wrappers used in another order, parameters that a rank changes by "
          "itself (a step, a load or a learning rate of one rank only, Embedding with max_norm, "
          "SAM by its own gradient, which needs verify_every = 0), a line search or a condition "
          "over a loss that is not averaged (Group::mean(), Group::any()). Make the change on "
          "every rank, average what it depends on, or call broadcast_parameters() after it"),
      {.rank = found ? found->rank : -1, .operation = "consistency check"});
}

PositionCheck::PositionCheck(const Group& group)
    : group_(group),
      position_(per_group<DataPosition>(group.host())),
      before_(position_->packed()) {}

Compared<std::uint64_t> PositionCheck::begin() {
  const auto now = position_->packed();
  own_ = now == before_ ? 0 : now;
  before_ = now;
  return own_ == 0 || has_warned_ ? Compared<std::uint64_t>::none() : Compared(own_);
}

void PositionCheck::check(const Compared<std::uint64_t>& maxima) {
  if (maxima.value == 0 || maxima.is_equal()) return;
  has_warned_ = true;
  const std::array line{own_ == 0 ? std::string("no new batch")
                                  : concat("epoch ", DataPosition::epoch_of(own_), " batch ",
                                           DataPosition::batch_of(own_))};
  const auto found = difference(group_.host().communicator(), line);
  if (group_.rank() != 0 || !found) return;
  log::notice(concat("DistributedSampler rank 0 of ", group_.size(), ": got ", found->text,
                     " in one exchange, expected the same on all ranks: a rank has skipped or "
                     "repeated a batch, so gradients of different steps are averaged from here on. "
                     "Skip a batch on all ranks or on none, or take part with weight(0)"));
}

bool OwnStepCheck::find() {
  if (!marks_) return false;
  constexpr int enough = 10;
  const auto before = std::exchange(last_, marks_());
  const bool is_first = !std::exchange(has_last_, true);
  state_changes_ = !is_first && last_.state != before.state ? state_changes_ + 1 : 0;
  const bool is_suspect = is_first || !has_gradients_ || last_.parameters != before.parameters;
  suspicions_ = is_suspect ? suspicions_ + 1 : 0;
  if (suspicions_ == enough) {
    log::notice(at_rank(
        "DistributedOptimizer", group_, "got ", enough,
        " backwards and no step() of the DistributedOptimizer, expected one: if the program calls "
        "step() of the optimizer that it wraps, call the DistributedOptimizer's, because ",
        has_gradients_ ? "the other exchanges nothing" : "the other finds no gradients"));
  }
  return state_changes_ >= 2;
}

InvalidArgument OwnStepCheck::error(bool is_own) const {
  return invalid_in("DistributedOptimizer", group_,
                    "got 3 backwards with the wrapped optimizer's own step() between them on ",
                    is_own ? "this" : "another",
                    " rank, expected the DistributedOptimizer's step(), which also exchanges what "
                    "the strategy, shard or share_memory require: call its step() or "
                    "backward_and_update()");
}

}  // namespace lockstep::detail
