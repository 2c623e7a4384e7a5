#include "parallel/reducer/gradient.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "averaging/average.h"
#include "comm/communicator.h"
#include "core/numeric/digest.h"
#include "core/text.h"
#include "group/gather.h"
#include "group/tensors.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "sync/bucket_layout.h"

namespace lockstep::inline v0_2::detail {

void refuse(const std::string& name, std::string_view why) {
  throw InvalidArgument(concat("parameter ", name, ": ", why));
}

bool is_stored_in(const at::Tensor& gradient, const at::Tensor& values) {
  return gradient.is_same(values) ||
         (gradient.defined() && gradient.layout() == at::kStrided && values.defined() &&
          values.layout() == at::kStrided && gradient.data_ptr() == values.data_ptr() &&
          gradient.strides() == values.strides());
}

bool has_places_of(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.is_cpu() && other.is_cpu() && tensor.layout() == at::kStrided &&
         other.layout() == at::kStrided && tensor.scalar_type() == other.scalar_type() &&
         tensor.sizes() == other.sizes() && tensor.strides() == other.strides() &&
         has_values_in_memory(tensor) && has_values_in_memory(other);
}

void copy_each(std::span<const at::Tensor> tensors, std::span<const at::Tensor> sources) {
  const at::AutoDispatchBelowADInplaceOrView no_versions;
  // CUDA's kernel takes a list of one dtype, with equal strides.
  std::map<std::pair<at::ScalarType, bool>, std::array<std::vector<at::Tensor>, 2>> lists;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool is_alike = tensors[i].strides() == sources[i].strides() &&
                          tensors[i].scalar_type() == sources[i].scalar_type();
    auto& [to, from] = lists[{tensors[i].scalar_type(), is_alike}];
    to.push_back(tensors[i]);
    from.push_back(sources[i]);
  }
  for (const auto& [kind, list] : lists) at::_foreach_copy_(list[0], list[1]);
}

void keep_for_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  tensor.record_stream(guard.getStream(tensor.device()));
}

void copy_into(const at::Tensor& values, const at::Tensor& gradient) {
  if (values.numel() > 0 && has_places_of(values, gradient)) {
    std::memcpy(values.data_ptr(), gradient.data_ptr(), values.nbytes());
    return;
  }
  values.copy_(gradient);
  keep_for_current_stream(gradient);
}

at::Tensor without_graph(const at::Tensor& values, const std::string& parameter) {
  auto mean = values.detach();
  mean.set_requires_grad(true);
  mean.register_hook([parameter](const at::Tensor&) {
    throw InvalidArgument(concat(
        "parameter ", parameter,
        ": a backward reached its averaged gradient, which has no graph even with create_graph: "
        "differentiate gradients of autograd::grad(), which are not averaged, and call backward() "
        "once, on the whole loss"));
  });
  return mean;
}

void weigh(const at::Tensor& values, double factor) {
  if (factor == 0) {
    values.zero_();  // a factor of 0 must also remove NaN
  } else if (factor != 1) {
    values.mul_(factor);
  }
}

void expect_copyable(const at::Tensor& gradient, const Bucket::Slice& slice) {
  const auto& values = slice.values;
  if (gradient.layout() == at::kStrided && gradient.scalar_type() == values.scalar_type() &&
      gradient.sizes() == values.sizes()) {
    return;
  }
  refuse(slice.name,
         concat("got a gradient of layout ", gradient.layout(), ", ",
                toString(gradient.scalar_type()), ' ', gradient.sizes(),
                ", expected a dense one of ", toString(values.scalar_type()), ' ', values.sizes()));
}

namespace {

/// Most elements that the digest of a mean covers.
constexpr std::int64_t max_samples = 4;

/// Whether both are on the CPU and equal, as after a backward that has added incoming to zeros.
bool are_equal(const at::Tensor& gradient, const at::Tensor& incoming) {
  return incoming.defined() && has_places_of(incoming, gradient) &&
         digest_of_mean(gradient) == digest_of_mean(incoming);
}

}  // namespace

void GradientRecord::add_backward(const at::Tensor& incoming) {
  const bool had_gradient = std::exchange(had_gradient_, false);
  if (is_local()) return;
  // Autograd accumulates by one in-place operation, which increments the version by one.
  if (state_ != GradientState::averaged || is_untouched(1)) {
    state_ = GradientState::local;
  } else if (are_equal(gradient(), incoming) ||
             (!had_gradient && !is_stored_in(gradient(), slice->values))) {
    state_ = GradientState::local_after_drop;
  } else {
    state_ = GradientState::local_after_edit;
  }
}

void GradientRecord::set_averaged() {
  state_ = GradientState::averaged;
  version_ = slice->values._version();
}

void GradientRecord::keep_average() {
  if (state_ == GradientState::averaged && is_untouched(1)) ++version_;
}

void GradientRecord::set_unchanged() {
  const bool averaged = state_ == GradientState::averaged && is_untouched();
  state_ = averaged ? GradientState::averaged : GradientState::none;
}

bool GradientRecord::is_untouched(std::int64_t additions) const {
  return is_stored_in(gradient(), slice->values) && gradient()._version() == version_ + additions;
}

GradientState GradientRecord::state() const {
  switch (state_) {
    case GradientState::averaged:
      return is_untouched() ? GradientState::averaged : GradientState::edited;
    case GradientState::local_after_edit:
    case GradientState::local_after_drop:
      return gradient().defined() ? state_ : GradientState::edited;
    case GradientState::local:
      return gradient().defined() ? GradientState::local : GradientState::none;
    default:
      return gradient().defined() ? GradientState::assigned : GradientState::none;
  }
}

void PartRecord::note_backward(const GradientRecord& record) {
  const auto& gradient = record.gradient();
  memory_.reset();
  if (gradient.defined() && gradient.has_storage())
    memory_ = gradient.storage().getWeakStorageImpl();
}

bool PartRecord::is_assigned(const GradientRecord& record) const {
  const auto& gradient = record.gradient();
  if (!gradient.defined()) return false;
  return !record.is_local() || !gradient.has_storage() || !memory_ ||
         memory_->lock().get() != gradient.storage().unsafeGetStorageImpl();
}

void FiniteCheck::test(const at::Tensor& values, std::uint8_t& flag) {
  if (values.is_cpu()) {
    if (!is_finite(values)) flag = not_finite;
  } else if (values.numel() > 0) {
    tested_.push_back(&flag);
    magnitudes_.push_back(at::linalg_vector_norm(values, std::numeric_limits<double>::infinity()));
  }
}

void FiniteCheck::complete(std::span<const std::uint8_t> flags) {
  if (!enabled_) return;
  if (!tested_.empty()) {
    const auto magnitudes = at::stack(magnitudes_).to(at::kCPU, at::kDouble);
    for (std::size_t i = 0; i < tested_.size(); ++i) {
      if (!std::isfinite(magnitudes.const_data_ptr<double>()[i])) *tested_[i] = not_finite;
    }
    tested_.clear();
    magnitudes_.clear();
  }
  own_flags_.assign(flags.begin(), flags.end());
}

std::exception_ptr FiniteCheck::take_error(
    std::span<std::uint8_t> flags, const std::function<std::string(std::size_t flag)>& name_of,
    const Group& group) {
  if (!enabled_) return nullptr;
  const auto first = std::ranges::find(flags, not_finite);
  if (first == flags.end()) return nullptr;
  const auto index = static_cast<std::size_t>(first - flags.begin());
  const auto others = std::ranges::count(flags, not_finite) - 1;
  std::ranges::replace(flags, not_finite, changed_by_rank);
  const auto all = gather_values(own_flags_[index], group);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == not_finite) ranks.push_back(static_cast<int>(rank));
  }
  const auto text = at_rank(
      "check_finite", group, "the gradient of parameter ", name_of(index), " on ", rank_list(ranks),
      " has NaN or Inf",
      others > 0 ? concat(", as have those of ", plural(others, "other parameter")) : "",
      ", expected finite numbers: call zero_grad() to leave this step out, or end training and "
      "look at the batch, the learning rate and the loss. With a GradScaler, which skips such "
      "steps itself, set check_finite = false");
  return std::make_exception_ptr(
      averaging::not_finite_error(text, ranks.front(), group.communicator()));
}

std::uint64_t digest_of_mean(const at::Tensor& mean) {
  // To read a device's memory, every step would wait for the device.
  if (!mean.is_cpu()) return 0;
  if (mean.layout() == at::kSparse) return digest_of_mean(mean._values());
  const auto size = static_cast<std::size_t>(mean.element_size());
  const auto* const bytes = static_cast<const std::byte*>(mean.const_data_ptr());
  const std::int64_t count = std::min(mean.numel(), max_samples);
  std::array<std::byte, max_samples * sizeof(c10::complex<double>)> sample;
  for (std::int64_t i = 0; i < count; ++i) {
    // The first, the last and evenly spaced elements between them, in memory order.
    const auto element = count > 1 ? i * (mean.numel() - 1) / (count - 1) : 0;
    std::memcpy(sample.data() + static_cast<std::size_t>(i) * size,
                bytes + static_cast<std::size_t>(element) * size, size);
  }
  return digest(std::span(sample).first(static_cast<std::size_t>(count) * size));
}

Weights::Weights(const Group& group)
    : group_(group.host()),
      mine_(group_.empty({2}, at::kDouble)),
      all_(group_.empty({2 * group.size()}, at::kDouble)),
      counted_{.number = group.size()} {}

std::span<const Weights::OfRank> Weights::all() const {
  return {static_cast<const OfRank*>(all_.const_data_ptr()),
          static_cast<std::size_t>(group_.size())};
}

void Weights::set(double weight) {
  work_.wait();  // of an earlier set(), whose memory this one uses
  auto& mine = *static_cast<OfRank*>(mine_.mutable_data_ptr());
  if (!are_set_) mine = {.first = weight, .other = weight};
  if (weight != mine.first) mine.other = weight;
  work_ = group_.all_gather(all_, mine_);
  are_set_ = true;
}

bool Weights::is_own_zero() const {
  return are_set_ && static_cast<const OfRank*>(mine_.const_data_ptr())->first == 0;
}

void Weights::check() {
  if (!are_set_) return;
  work_.wait();
  const auto weights = all();
  const auto refuse = [&](int rank, auto&&... what) {
    are_set_ = false;
    throw InvalidArgument(at_rank("weight", group_, "got ", what...),
                          {.rank = rank, .operation = "weight"});
  };
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    const auto world_rank = group_.communicator().world_rank(static_cast<int>(rank));
    const auto [first, other] = weights[rank];
    if (!std::isfinite(first) || first < 0)
      refuse(world_rank, first, " on rank ", rank, ", expected 0 or more");
    if (other != first) {
      refuse(world_rank, first, " and then ", other, " on rank ", rank,
             " before one exchange, expected one weight for each exchange: to accumulate unequal "
             "micro-batches, divide the sum of each micro-batch's losses by the total of this "
             "rank's samples, and call weight() once, with that total");
    }
  }
  if (std::ranges::all_of(weights, [](const OfRank& weight) { return weight.first == 0; })) {
    refuse(-1, "0 on every rank, expected more on at least one");
  }
}

double Weights::take_factor() {
  check();
  if (!std::exchange(are_set_, false)) return 1;
  const auto weights = all();
  double sum = 0;
  for (const auto& weight : weights) sum += weight.first;
  const double mine = weights[static_cast<std::size_t>(group_.rank())].first;
  const bool equal = std::ranges::all_of(
      weights, [&](const OfRank& weight) { return weight.first == weights.front().first; });
  return equal ? 1 : mine / sum * group_.size();
}

void Weights::refuse_late() {
  if (!are_set_ || !has_exchanged_) return;
  work_.wait();
  are_set_ = false;
  throw InvalidArgument(
      at_rank("weight", group_, "got ", all()[static_cast<std::size_t>(group_.rank())].first,
              " after the gradients of this step were averaged, expected a weight before: call "
              "weight() before the backward whose gradients it weights"),
      {.operation = "weight"});
}

void Weights::end_step() {
  are_set_ = false;
  has_exchanged_ = false;
  counted_ = {.number = group_.size()};
}

double Weights::begin_exchange(bool is_first) {
  const bool were_set = are_set_;
  const double factor = take_factor();
  has_exchanged_ = true;
  if (is_first) counted_ = {.number = group_.size()};
  if (!were_set) return factor;
  const auto weights = all();
  const auto counts = [](const OfRank& weight) { return weight.first > 0; };
  counted_ = {.first = static_cast<int>(std::ranges::find_if(weights, counts) - weights.begin()),
              .number = static_cast<int>(std::ranges::count_if(weights, counts)),
              .has_own = counts(weights[static_cast<std::size_t>(group_.rank())])};
  return factor;
}

}  // namespace lockstep::detail
