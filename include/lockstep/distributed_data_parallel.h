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
#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/model_view.h"

namespace c10 {
struct IValue;
}

namespace lockstep::inline v0_2::detail {

/// Accepts any tensor. A stand-in for the callable that visit_tensors() receives, used in concepts.
struct TensorVisitor {
  void operator()(const at::Tensor&) const {}
};

/// A user's type with a function `void visit_tensors(const T& output, const auto& visit)` in the
/// same namespace, which calls visit with every tensor of the output.
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

/// std::optional, std::unique_ptr, std::shared_ptr and the like, which may be empty.
template <class T>
concept IsHandle = !std::is_array_v<T> && requires(const T& handle) {
  static_cast<bool>(handle);
  *handle;
};

template <class T>
concept IsVariant = requires {
  std::variant_size<T>::value;
};

/// A tensor has a destructor, so trivially copyable types contain no tensor.
template <class T>
concept HoldsNoTensor = std::is_trivially_copyable_v<T> || std::convertible_to<T, std::string_view>;

/// Calls visit with every tensor in a value, with none for a null pointer. Returns whether values
/// of type T have no parts but those in which it can find tensors.
template <class T, class Visit>
constexpr bool visit_each(const T* value, const Visit& visit) {
  if constexpr (HasVisitTensors<T>) {
    if (value != nullptr) visit_tensors(*value, visit);
    return true;
  } else if constexpr (IsTensor<T>) {
    if (value != nullptr) visit(*value);
    return true;
  } else if constexpr (IsIValue<T>) {
    if (value != nullptr) {
      value->visit([&](const auto& part) {
        if (part.isTensor()) visit(part.toTensor());
        return false;
      });
    }
    return true;
  } else if constexpr (HoldsNoTensor<T>) {
    return true;
  } else if constexpr (IsVariant<T>) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (visit_each(std::get_if<I>(value), visit) && ...);
    }
    (std::make_index_sequence<std::variant_size_v<T>>());
  } else if constexpr (IsTuple<T>) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (visit_each(value != nullptr ? &std::get<I>(*value) : nullptr, visit) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<const T>) {
    using Part = std::remove_cvref_t<std::ranges::range_reference_t<const T>>;
    if constexpr (std::same_as<Part, T>) {
      return false;
    } else {
      // A constant expression cannot contain iterators of every type, but a lambda with them.
      const auto visit_parts = [&] {
        for (const auto& part : *value) visit_each(&part, visit);
      };
      if (value != nullptr) visit_parts();
      return visit_each<Part>(nullptr, visit);
    }
  } else if constexpr (IsEntry<T>) {
    const auto visit_part = [&](const auto& part) { return visit_each(&part, visit); };
    if (value != nullptr) visit_part(value->value());
    return visit_each<std::remove_cvref_t<decltype(value->value())>>(nullptr, visit);
  } else if constexpr (IsHandle<T>) {
    const auto visit_part = [&](const auto& part) { visit_each(&part, visit); };
    if (value != nullptr && *value) visit_part(**value);
    return visit_each<std::remove_cvref_t<decltype(**value)>>(nullptr, visit);
  } else {
    return false;
  }
}

/// Types that may contain tensors which for_each_tensor() can find.
template <class T>
concept Watchable = !HoldsNoTensor<T> && visit_each<T>(nullptr, TensorVisitor());

/// Calls visit with every tensor in the value, of a type that is Watchable.
template <class Visit>
void for_each_tensor(const Watchable auto& value, const Visit& visit) {
  visit_each(&value, visit);
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

class DistributedOptimizer;

namespace detail {

/// Models that are values: handles that refer to the same parameters when they are copied.
template <class M>
concept ModelHandle = std::same_as<M, torch::jit::Module> || std::same_as<M, ModelView>;

template <class M>
concept Module = std::derived_from<M, torch::nn::Module>;

template <class M>
ModelView view_of(const std::shared_ptr<M>& model) {
  if constexpr (ModelHandle<M>) {
    if (model == nullptr) return ModelView(std::shared_ptr<const torch::nn::Module>());
    return ModelView(*model);
  } else {
    return ModelView(std::shared_ptr<const torch::nn::Module>(model));
  }
}

/// The inputs of a torch::jit::Module.
template <class M>
using ScriptInputs =
    std::vector<std::conditional_t<std::same_as<M, torch::jit::Module>, c10::IValue, bool>>;

/// The forward of a model of any kind.
template <class M, class... Args>
decltype(auto) run_forward(M& model, Args&&... args) {
  if constexpr (std::same_as<M, ModelView>) {
    return std::invoke(std::forward<Args>(args)...);
  } else if constexpr (!std::same_as<M, torch::jit::Module>) {
    return model.forward(std::forward<Args>(args)...);
  } else if constexpr (sizeof...(Args) == 1 &&
                       (std::same_as<std::remove_cvref_t<Args>, ScriptInputs<M>> && ...)) {
    return model.forward(std::forward<Args>(args)...);
  } else {
    ScriptInputs<M> inputs;
    (inputs.emplace_back(std::forward<Args>(args)), ...);
    return model.forward(std::move(inputs));
  }
}

class ForwardGraph;
class Reducer;

/// A model that all ranks hold. Both front ends use it. It compares the ranks' models, makes them
/// equal at the start, and has the Reducer that exchanges gradients.
class ReplicatedModel {
 public:
  /// is_optimized: null for a DistributedDataParallel.
  /// Ranks: all of the group.
  /// Throws: InvalidArgument, on every rank; the group stays usable. Any other error, such as a
  /// shortage of memory on one rank, ends the world.
  ReplicatedModel(ModelView model, const Group& group, const DataParallelOptions& options,
                  const IsOptimized& is_optimized = nullptr);
  ~ReplicatedModel();
  ReplicatedModel(const ReplicatedModel&) = delete;
  ReplicatedModel& operator=(const ReplicatedModel&) = delete;

  /// Throws: InvalidArgument when the model's parameters are not those it was wrapped with.
  void check_unchanged() const;
  /// Whether this is one of the parameters that were wrapped.
  bool wraps(const at::Tensor& parameter) const;
  /// Throws: InvalidArgument if an option moves the parameters, and one shares its memory with
  /// another tensor.
  void check_movable() const;
  /// Call before a forward that a backward may follow. The graph is for watch().
  /// Throws: InvalidArgument when check_unchanged() or Reducer::check_optimizer() does.
  std::shared_ptr<ForwardGraph> begin_forward() const;
  /// Call before a forward without gradients: writes the buffers that a backward has received.
  void write_buffers() const;
  void watch(const at::Tensor& output, const std::shared_ptr<ForwardGraph>& graph) const;
  /// Throws: InvalidArgument with the types that a forward may return.
  [[noreturn]] void refuse_output(const std::type_info& type) const;
  NoSync no_sync() const { return NoSync(reducer_); }
  void set_weight(double samples) const;
  State state() const;
  void load_state(const State& state) const;

  Reducer& reducer() const { return *reducer_; }
  const ModelView& model() const { return model_; }
  const Group& group() const { return group_; }
  const DataParallelOptions& options() const { return options_; }

 private:
  /// A parameter as it was when the model was wrapped.
  struct Wrapped {
    NamedTensor named;
    at::ScalarType dtype;
    bool trainable;
  };

  ModelView model_;
  Group group_;
  DataParallelOptions options_;
  const char* operation_;  ///< name of the front end
  std::vector<Wrapped> wrapped_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace detail

/// Data-parallel training of a replicated model. Call this object instead of the model: when
/// backward() returns, .grad() of every parameter is the mean over ranks.
///
///     lockstep::DistributedDataParallel ddp(model, world);
///     loss_of(ddp(batch.data), batch.target).backward();
///
/// A parameter that no rank's backward reached keeps its gradient, or has none. A parameter that
/// only some ranks' backward reached gets the mean over all ranks; the other ranks count with the
/// gradient that they have, or as zero.
/// Gradients share memory with buckets. One that the program keeps over zero_grad() keeps its
/// values, in memory of its own.
/// autograd::grad() is not synchronised. Averaged gradients have no graph, also with create_graph:
/// a backward through one raises InvalidArgument. An exception within backward() after buckets were
/// sent ends the world. If parameters differ between replicas, backward() throws ReplicaError on
/// every rank, after at most verify_every · (number of buckets and of parameters with sparse
/// gradients) exchanges.
///
/// The program calls the optimizer's own step. With DataParallelOptions::shard or share_memory,
/// where each rank updates a part of the parameters, a DistributedOptimizer over this object steps
/// instead, and these options say what .grad() is.
///
/// Ranks: all must construct it, and run the same number of backwards. It may be destroyed before
/// or after the model.
template <class M>
class DistributedDataParallel {
 public:
  /// Checks that the models of all ranks have the same parameters and buffers, and copies rank 0's
  /// values to all ranks (initial_sync).
  /// Throws: InvalidArgument, on every rank, if the models differ, naming the first difference and
  /// the ranks; if the model cannot be wrapped; or if the strategy does not average every gradient
  /// (use DistributedOptimizer). The group stays usable.
  DistributedDataParallel(std::shared_ptr<M> model, const Group& group,
                          const DataParallelOptions& options = {})
      : model_(std::move(model)),
        replicas_(
            std::make_shared<detail::ReplicatedModel>(detail::view_of(model_), group, options)) {}

  /// The same for a model declared with TORCH_MODULE.
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& model, const Group& group,
                          const DataParallelOptions& options = {})
      : DistributedDataParallel(model.ptr(), group, options) {}

  /// The same for a model on the stack, or in a std::unique_ptr that keeps it. The model must
  /// outlive this object.
  DistributedDataParallel(std::type_identity_t<M>& model, const Group& group,
                          const DataParallelOptions& options = {}) requires detail::Module<M>
      : DistributedDataParallel(std::shared_ptr<M>(std::shared_ptr<void>(), &model), group,
                                options) {}
  DistributedDataParallel(std::unique_ptr<M>& model, const Group& group,
                          const DataParallelOptions& options = {})
      : DistributedDataParallel(std::shared_ptr<M>(std::shared_ptr<void>(), model.get()), group,
                                options) {}

  /// The same for a torch::jit::Module, whose forward gets args as IValues or one
  /// std::vector<c10::IValue>; and for a ModelView, such as a list of named tensors, where the
  /// first of args is the forward, a function that gets the other args:
  ///
  ///     lockstep::DistributedDataParallel ddp(lockstep::ModelView({{"w", w}}), world);
  ///     ddp([&] { return x.mm(w); }).sum().backward();
  ///
  /// A forward that runs without this object is synchronised, too, if its backward reaches a
  /// parameter on every rank.
  DistributedDataParallel(const std::type_identity_t<M>& model, const Group& group,
                          const DataParallelOptions& options = {}) requires detail::ModelHandle<M>
      : DistributedDataParallel(std::make_shared<M>(model), group, options) {}

  /// model.forward(args…). The output may be a tensor, or tuples, ranges, dictionaries, optionals,
  /// pointers and variants of them; for another type declare, in the type's namespace,
  ///
  ///     void visit_tensors(const Output& output, const auto& visit);  // calls visit(tensor)
  ///
  /// so that a rank whose loss reaches no parameter still takes part in the exchange.
  /// Throws: InvalidArgument if the model's list of parameters has changed, or if gradients are
  /// enabled and the output is of another type, a buffer has got other sizes, or an option lacks
  /// its DistributedOptimizer.
  template <class... Args>
  auto operator()(Args&&... args) {
    using Output =
        std::remove_cvref_t<decltype(detail::run_forward(*model_, std::forward<Args>(args)...))>;
    if (at::GradMode::is_enabled()) {
      const auto graph = replicas_->begin_forward();
      if constexpr (detail::Watchable<Output>) {
        auto output = detail::run_forward(*model_, std::forward<Args>(args)...);
        detail::for_each_tensor(output,
                                [&](const at::Tensor& tensor) { replicas_->watch(tensor, graph); });
        return output;
      } else {
        replicas_->refuse_output(typeid(Output));
      }
    }
    replicas_->write_buffers();
    return static_cast<Output>(detail::run_forward(*model_, std::forward<Args>(args)...));
  }

  const std::shared_ptr<M>& module() const { return model_; }
  const Group& group() const { return replicas_->group(); }

  /// Disables synchronisation of backward() until the returned guard is destroyed.
  NoSync no_sync() const { return replicas_->no_sync(); }

  /// Sets the weight w_r of this rank's gradients g_r in the next exchange, such as the samples of
  /// its batch. .grad() is then Σ w_r·g_r ÷ Σ w_r; without weights it is the mean. The gradients of
  /// a rank with weight 0 have no effect. Does not block. An exchange has one weight: call it
  /// before each of several backwards. For batches that accumulate under no_sync(), divide the
  /// summed loss of each by the total of this rank's samples, and set that total once. Gradients of
  /// a model with SyncBatchNorm, or with collectives of differentiable::, are wrong with unequal
  /// weights: weight the loss instead, as SyncBatchNorm says. Ranks: all, or none. Throws:
  /// InvalidArgument, on every rank, for a strategy that does not average every gradient at every
  /// step, such as adasum. The backward throws it, on every rank, if a weight is negative or not
  /// finite, if a rank has set two different ones, or if all are zero. The group stays usable.
  void weight(double samples) { replicas_->set_weight(samples); }

  /// The strategy's state on this rank, by parameter names. Each rank has its own state: load it on
  /// the rank that saved it.
  State state() const { return replicas_->state(); }
  /// Throws: InvalidArgument if the state does not fit this model and strategy.
  void load_state(const State& state) { replicas_->load_state(state); }

 private:
  friend class DistributedOptimizer;

  std::shared_ptr<M> model_;
  std::shared_ptr<detail::ReplicatedModel> replicas_;
};

template <class M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&, const Group&,
                        const DataParallelOptions& = {}) -> DistributedDataParallel<M>;
template <class M>
DistributedDataParallel(const std::unique_ptr<M>&, const Group&, const DataParallelOptions& = {})
    -> DistributedDataParallel<M>;
template <detail::Module M>
DistributedDataParallel(M&, const Group&, const DataParallelOptions& = {})
    -> DistributedDataParallel<M>;
template <detail::ModelHandle M>
DistributedDataParallel(const M&, const Group&, const DataParallelOptions& = {})
    -> DistributedDataParallel<M>;

}  // namespace lockstep
