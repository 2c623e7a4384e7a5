#include "lockstep/moving_average.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "core/operation_error.h"
#include "core/text.h"
#include "group/tensors.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

using detail::concat;
using detail::throw_invalid;

namespace {

constexpr const char* updates_name = "updates";
constexpr const char* weight_name = "weight";
constexpr const char* values_prefix = "values/";
constexpr std::int64_t grain = 1 << 15;  ///< elements that are worth a thread

/// Not at::lerp_, whose bits depend on the number of threads: its last elements of each thread take
/// another path than vectors do.
template <class T>
void lerp(at::Tensor& average, const at::Tensor& value, double weight) {
  T* const to = average.mutable_data_ptr<T>();
  const T* const from = value.const_data_ptr<T>();
  const T factor = static_cast<T>(weight);
  at::parallel_for(0, average.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] += factor * (from[i] - to[i]);
  });
}

/// Reads the elements in the order of memory, so value needs the strides of average, and may be no
/// lazy negative, of which LibTorch's copy of float16 to float32 drops the sign.
void average_into(at::Tensor& average, const at::Tensor& value, double weight) {
  const bool same_layout = value.scalar_type() == average.scalar_type() &&
                           value.strides() == average.strides() &&
                           detail::has_values_in_memory(value);
  const at::Tensor values =
      same_layout ? value : at::empty_like(average).copy_(value.resolve_neg());
  if (!average.is_cpu())
    average.add_((values - average).mul_(weight));
  else if (average.scalar_type() == at::kDouble)
    lerp<double>(average, values, weight);
  else
    lerp<float>(average, values, weight);
}

/// The backward of a forward before the change raises an error instead of using the new values.
void replace(const at::Tensor& tensor, const at::Tensor& values) {
  tensor.set_data(values);
  torch::autograd::impl::bump_version(tensor);
}

/// Each tensor once, under its first name.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors) {
  std::unordered_set<const void*> listed;
  std::erase_if(tensors, [&](const NamedTensor& named) {
    return !listed.insert(named.tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

}  // namespace

MovingAverage::MovingAverage(const ModelView& model, MovingAverageOptions options)
    : options_(options) {
  if (!(options.decay >= 0 && options.decay <= 1))
    throw_invalid("MovingAverage", "got decay = ", options.decay, ", expected 0 to 1");
  const at::NoGradGuard no_grad;
  const auto add = [&](const NamedTensor& named) {
    const auto& [name, tensor] = named;
    if (!tensor.defined()) return;
    if (tensor.layout() != at::kStrided || tensor.is_complex())
      throw_invalid("MovingAverage", "got '", name, "' of type ", tensor.toString(),
                    ", expected a dense real tensor");
    const bool is_lower = tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
    const auto dtype = is_lower ? at::kFloat : tensor.scalar_type();
    at::Tensor average = at::empty_like(tensor.detach(), tensor.options().dtype(dtype));
    average.copy_(tensor.resolve_neg());
    entries_.push_back({.name = name, .tensor = tensor, .average = average, .trained = {}});
  };
  for (const auto& named : each_once(model.parameters())) add(named);
  const auto buffers = each_once(model.buffers());
  if (options.average_buffers)
    for (const auto& named : buffers) add(named);
}

void MovingAverage::check_not_applied(const char* operation) const {
  if (applied_)
    throw_invalid(operation,
                  "the averaged parameters are applied: call it after the end of that scope");
}

/// Writes the buffers that a wrapper has received, which may wait for the graph of a forward. A
/// view writes them when it lists them. In the list, names have no meaning.
void MovingAverage::write_buffers() const {
  if (!options_.average_buffers) return;
  std::vector<NamedTensor> tensors;
  for (const auto& entry : entries_)
    tensors.push_back({.name = std::to_string(tensors.size()), .tensor = entry.tensor});
  static_cast<void>(ModelView({}, std::move(tensors)).buffers());
}

void MovingAverage::update() {
  check_not_applied("MovingAverage::update");
  write_buffers();
  const at::NoGradGuard no_grad;
  // Additions and multiplications only: std::pow may differ between machines.
  weight_ = 1 + options_.decay * weight_;
  const double weight = options_.bias_correction ? 1 / weight_ : 1 - options_.decay;
  for (auto& [name, tensor, average, trained] : entries_) {
    if (updates_ == 0 || !tensor.is_floating_point())
      average.copy_(tensor.resolve_neg());
    else
      average_into(average, tensor.detach(), weight);
  }
  ++updates_;
}

void MovingAverage::exchange() {
  check_not_applied("MovingAverage::apply");
  write_buffers();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  if (updates_ > 0) {
    for (const auto& entry : entries_)
      values.push_back(entry.average.to(entry.tensor.scalar_type()));
  }
  applied_ = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto& entry = entries_[i];
    entry.trained = entry.tensor.detach();
    replace(entry.tensor, values[i]);
  }
}

void MovingAverage::restore() {
  for (auto& entry : entries_) {
    if (entry.trained.defined()) replace(entry.tensor, std::exchange(entry.trained, {}));
  }
  applied_ = false;
}

AppliedAverage::AppliedAverage(MovingAverage& average) : average_(average) { average_.exchange(); }

AppliedAverage::~AppliedAverage() { average_.restore(); }

State MovingAverage::state() const {
  check_not_applied("MovingAverage::state");
  State state{{updates_name, at::scalar_tensor(updates_, at::kLong)},
              {weight_name, at::scalar_tensor(weight_, at::kDouble)}};
  for (const auto& entry : entries_)
    state.emplace(concat(values_prefix, entry.name), entry.average);
  return state;
}

void MovingAverage::load_state(const State& state) {
  constexpr const char* operation = "MovingAverage::load_state";
  check_not_applied(operation);
  const State own = this->state();
  for (const auto& [name, expected] : own) {
    const auto found = state.find(name);
    if (found == state.end()) throw_invalid(operation, "got no '", name, "'");
    const at::Tensor& tensor = found->second;
    if (!tensor.defined() || tensor.layout() != expected.layout())
      throw_invalid(operation, "got '", name, "' that is no dense tensor, expected one");
    if (tensor.sizes() != expected.sizes() || tensor.scalar_type() != expected.scalar_type())
      throw_invalid(operation, "got '", name, "' of ", tensor.scalar_type(), ' ', tensor.sizes(),
                    ", expected ", expected.scalar_type(), ' ', expected.sizes());
  }
  for (const auto& [name, tensor] : state)
    if (!own.contains(name))
      throw_invalid(operation, "got '", name, "', which this model does not average");
  const auto updates = state.at(updates_name).item<std::int64_t>();
  if (updates < 0) throw_invalid(operation, "got ", updates, " updates, expected at least 0");
  for (auto& entry : entries_) entry.average.copy_(state.at(concat(values_prefix, entry.name)));
  updates_ = updates;
  weight_ = state.at(weight_name).item<double>();
}

}  // namespace lockstep
