#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>

#include "lockstep/data_parallel_options.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"

namespace c10 {
struct IValue;
}

namespace lockstep::inline v0_2::detail {

/// Accepts any tensor; stands for the callable that visit_tensors() is given.
struct TensorVisitor {
  void operator()(const at::Tensor&) const {}
};

/// A user's type with `void visit_tensors(const T& output, const auto& visit)` beside it, which
/// calls visit with every tensor of the output.
template <class T>
concept HasVisitTensors = requires(const T& value, const TensorVisitor& visit) {
  visit_tensors(value, visit);
};

template <class T>
concept IsTensor = std::convertible_to<const T&, const at::Tensor&>;

template <class T>
concept IsIValue = std::same_as<T, c10::IValue>;

template <class T>
concept IsTuple = requires {
  std::tuple_size<T>::value;
}
&&!std::ranges::range<T>;

/// An entry of torch::OrderedDict or c10::Dict.
template <class T>
concept IsEntry = requires(const T& entry) {
  entry.key();
  entry.value();
};

/// std::optional, std::unique_ptr, std::shared_ptr: something, or nothing.
template <class T>
concept IsHandle = !std::is_array_v<T> && requires(const T& handle) {
  static_cast<bool>(handle);
  *handle;
};

template <class T>
struct IsVariant : std::false_type {};
template <class... Alternatives>
struct IsVariant<std::variant<Alternatives...>> : std::true_type {};

/// A tensor owns memory, so a type without a destructor of its own holds none.
template <class T>
concept HoldsNoTensor = std::is_trivially_copyable_v<T> || std::convertible_to<T, std::string_view>;

/// Which of a type's values for_each_tensor() can find the tensors of.
template <class T>
constexpr bool can_visit();

template <class T>
struct CanVisitParts : std::false_type {};
template <template <class...> class Tuple, class... Parts>
struct CanVisitParts<Tuple<Parts...>>
    : std::bool_constant<(can_visit<std::remove_cvref_t<Parts>>() && ...)> {};

template <class T, std::size_t... I>
constexpr bool can_visit_elements(std::index_sequence<I...>) {
  return (can_visit<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
}

template <class T>
constexpr bool can_visit() {
  if constexpr (HasVisitTensors<T> || IsTensor<T> || IsIValue<T> || HoldsNoTensor<T>) {
    return true;
  } else if constexpr (IsVariant<T>::value) {
    return CanVisitParts<T>::value;
  } else if constexpr (IsTuple<T>) {
    return can_visit_elements<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<const T>) {
    using Part = std::remove_cvref_t<std::ranges::range_reference_t<const T>>;
    if constexpr (std::same_as<Part, T>) {
      return false;
    } else {
      return can_visit<Part>();
    }
  } else if constexpr (IsEntry<T>) {
    return can_visit<std::remove_cvref_t<decltype(std::declval<const T&>().value())>>();
  } else if constexpr (IsHandle<T>) {
    return can_visit<std::remove_cvref_t<decltype(*std::declval<const T&>())>>();
  } else {
    return false;
  }
}

/// Whether backward can reach a model through a value of this type.
template <class T>
concept Watchable = !HoldsNoTensor<T> && can_visit<T>();

/// Calls visit with every tensor in a value for which can_visit() holds.
template <class T, class Visit>
void for_each_tensor(const T& value, const Visit& visit) {
  if constexpr (HasVisitTensors<T>) {
    visit_tensors(value, visit);
  } else if constexpr (IsTensor<T>) {
    visit(value);
  } else if constexpr (IsIValue<T>) {
    value.visit([&](const auto& part) {
      if (part.isTensor()) visit(part.toTensor());
      return false;
    });
  } else if constexpr (HoldsNoTensor<T>) {
    return;
  } else if constexpr (IsVariant<T>::value) {
    std::visit([&](const auto& part) { for_each_tensor(part, visit); }, value);
  } else if constexpr (IsTuple<T>) {
    std::apply([&](const auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
  } else if constexpr (std::ranges::range<const T>) {
    for (const auto& part : value) for_each_tensor(part, visit);
  } else if constexpr (IsEntry<T>) {
    for_each_tensor(value.value(), visit);
  } else {
    if (value) for_each_tensor(*value, visit);
  }
}

}  // namespace lockstep::detail

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0_2 {

namespace detail {

class ReplicatedModel;

/// The part of a DistributedDataParallel that does not depend on the model's type.
class DataParallelModel {
 public:
  DataParallelModel(std::shared_ptr<torch::nn::Module> module, const Group& group,
                    const DataParallelOptions& options);

  void begin_forward() const;
  void watch(const at::Tensor& output) const;
  [[noreturn]] void refuse_output(const std::type_info& type) const;
  NoSync no_sync() const;
  void set_weight(double samples) const;
  State state() const;
  void load_state(const State& state) const;

 private:
  std::shared_ptr<ReplicatedModel> model_;
};

}  // namespace detail

/// Data-parallel training of a model that every rank holds. Call it instead of the model: when
/// backward() returns, .grad() of every parameter is the mean over ranks.
///
///     lockstep::DistributedDataParallel ddp(model, world);
///     loss_of(ddp(batch.data), batch.target).backward();
///
/// Parameters that no rank's backward reached keep their gradient, or have none. Parameters that
/// some ranks' backward reached get the mean over all ranks, zero counting for the others.
/// Gradients lie in buckets: they are overwritten by the next backward after zero_grad().
/// autograd::grad() is not synchronised. With create_graph means have no graph either: a backward
/// that comes to one raises InvalidArgument.
/// An exception within backward() that comes after buckets were sent ends the world. Replicas whose
/// parameters turn out to differ make backward() throw ReplicaError on every rank, within
/// verify_every times as many exchanges as there are buckets.
///
/// Ranks: all must construct it, and run as many backwards. It may end before or after the model.
template <class M>
class DistributedDataParallel {
 public:
  /// Checks that all ranks hold the same parameters and buffers, and gives them rank 0's.
  /// Throws: InvalidArgument, on every rank, when they do not, naming the first difference and the
  /// ranks, when the model cannot be wrapped, or when the strategy does not average every gradient
  /// (DistributedOptimizer takes those); the group stays usable.
  DistributedDataParallel(std::shared_ptr<M> model, const Group& group,
                          const DataParallelOptions& options = {})
      : model_(std::move(model)), data_parallel_(model_, group, options) {}

  /// The same for a model declared with TORCH_MODULE.
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& model, const Group& group,
                          const DataParallelOptions& options = {})
      : DistributedDataParallel(model.ptr(), group, options) {}

  /// model.forward(args…). The output may be a tensor, or tuples, ranges, dictionaries, optionals,
  /// pointers and variants of them; for another type declare, in the type's namespace,
  ///
  ///     void visit_tensors(const Output& output, const auto& visit);  // calls visit(tensor)
  ///
  /// so that a rank whose loss reaches no parameter takes part in the exchange nevertheless.
  /// Throws: InvalidArgument when the model's list of parameters has changed, or when the output is
  /// of another type and gradients are enabled.
  template <class... Args>
  auto operator()(Args&&... args) {
    using Output = std::remove_cvref_t<decltype(model_->forward(std::forward<Args>(args)...))>;
    if (at::GradMode::is_enabled()) {
      data_parallel_.begin_forward();
      if constexpr (detail::Watchable<Output>) {
        auto output = model_->forward(std::forward<Args>(args)...);
        detail::for_each_tensor(output,
                                [&](const at::Tensor& tensor) { data_parallel_.watch(tensor); });
        return output;
      } else {
        data_parallel_.refuse_output(typeid(Output));
      }
    }
    return static_cast<Output>(model_->forward(std::forward<Args>(args)...));
  }

  const std::shared_ptr<M>& module() const { return model_; }

  /// Holds synchronisation back for as long as the guard lives.
  NoSync no_sync() const { return data_parallel_.no_sync(); }

  /// Before a backward: how much this rank's gradients count in it, as the samples of its batch do.
  /// .grad() is then Σ w_r·g_r ÷ Σ w_r. A rank of weight 0 takes part without having a say. Without
  /// it all count alike. Does not block.
  /// Ranks: all, or none. That backward throws InvalidArgument, on every rank, when a weight is
  /// negative or not finite, or all are zero; the group stays usable.
  void weight(double samples) { data_parallel_.set_weight(samples); }

  /// The strategy's state on this rank, by parameter names. Save it, and load it again on the same
  /// rank.
  State state() const { return data_parallel_.state(); }
  /// Throws: InvalidArgument when it is not a state of this model and strategy.
  void load_state(const State& state) { data_parallel_.load_state(state); }

 private:
  std::shared_ptr<M> model_;
  detail::DataParallelModel data_parallel_;
};

template <class M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&, const Group&)
    -> DistributedDataParallel<M>;
template <class M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&, const Group&, const DataParallelOptions&)
    -> DistributedDataParallel<M>;

}  // namespace lockstep
