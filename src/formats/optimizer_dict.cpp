#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>

#include <concepts>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/text.h"
#include "formats/checkpoint_error.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"
#include "parallel/update/optimizer_fields.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {

namespace {

using c10::IValue;
using c10::impl::GenericDict;
using detail::concat;
using torch::optim::Optimizer;

GenericDict empty_dict() { return GenericDict(c10::AnyType::get(), c10::AnyType::get()); }
c10::impl::GenericList empty_list() { return c10::impl::GenericList(c10::AnyType::get()); }

// --- to Python -----------------------------------------------------------------------------------

/// Visitor that writes each field in Python's format.
struct Writer {
  GenericDict& dict;

  void operator()(const char* name, double value) const { dict.insert(name, value); }
  void operator()(const char* name, bool value) const { dict.insert(name, value); }
  void operator()(const char* name, const std::tuple<double, double>& value) const {
    dict.insert(name, c10::ivalue::Tuple::create(std::get<0>(value), std::get<1>(value)));
  }
  void operator()(const char* name, std::int64_t step) const {
    dict.insert(name, at::scalar_tensor(static_cast<double>(step), at::kFloat));
  }
  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) dict.insert(name, value);
  }
  void operator()(const char* name, const std::deque<at::Tensor>& values) const {
    auto list = empty_list();
    for (const at::Tensor& value : values) list.push_back(value);
    dict.insert(name, list);
  }
  template <class Value>
  void operator()(const char* name, const detail::Count<Value>& count) const {
    dict.insert(name, IValue(count.value));
  }
  void operator()(const char* name, const std::optional<std::string>& value) const {
    dict.insert(name, IValue(value));
  }
};

// --- from Python ---------------------------------------------------------------------------------

/// Visitor that reads each field from Python's format.
struct Reader {
  const GenericDict& dict;
  std::string where;
  at::Tensor parameter{};    ///< tensors must have its shape and dtype
  bool has_numbers = false;  ///< a tensor may also be a number

  IValue at(const char* name) const {
    const auto found = dict.find(name);
    if (found == dict.end()) throw CheckpointError(concat(where, ": found no '", name, "'"));
    return found->value();
  }
  [[noreturn]] void fail(const char* name, const char* expected, const IValue& found) const {
    throw CheckpointError(
        concat(where, ": '", name, "': expected ", expected, ", found ", found.tagKind()));
  }

  double number(const char* name, const IValue& value) const {
    if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item<double>();
    if (value.isDouble()) return value.toDouble();
    if (value.isInt()) return static_cast<double>(value.toInt());
    fail(name, "a number", value);
  }
  void operator()(const char* name, double& value) const { value = number(name, at(name)); }
  void operator()(const char* name, std::int64_t& step) const {
    step = static_cast<std::int64_t>(number(name, at(name)));
  }
  void operator()(const char* name, bool& value) const {
    const IValue found = at(name);
    if (!found.isBool()) fail(name, "a bool", found);
    value = found.toBool();
  }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    const IValue found = at(name);
    if (!found.isTuple() || found.toTupleRef().elements().size() != 2)
      fail(name, "two numbers", found);
    const auto& parts = found.toTupleRef().elements();
    value = {number(name, parts[0]), number(name, parts[1])};
  }
  /// An absent field and None both mean that the tensor is undefined.
  void operator()(const char* name, at::Tensor& value) const {
    const auto found = dict.find(name);
    if (found == dict.end() || found->value().isNone()) return;
    value = tensor_of(name, found->value());
  }
  void operator()(const char* name, std::deque<at::Tensor>& values) const {
    const IValue found = at(name);
    if (!found.isList()) fail(name, "a list", found);
    for (const IValue& value : found.toListRef()) values.push_back(tensor_of(name, value));
  }
  void operator()(const char* name, const detail::Count<std::int64_t>& count) const {
    const IValue found = at(name);
    if (!found.isInt()) fail(name, "an integer", found);
    count.value = found.toInt();
  }
  void operator()(const char* name, const detail::Count<std::optional<std::int64_t>>& count) const {
    const IValue found = at(name);
    if (!found.isInt() && !found.isNone()) fail(name, "an integer or None", found);
    count.value = found.toOptional<std::int64_t>();
  }
  void operator()(const char* name, std::optional<std::string>& value) const {
    const IValue found = at(name);
    if (!found.isString() && !found.isNone()) fail(name, "a string or None", found);
    value = found.toOptional<std::string>();
  }

 private:
  at::Tensor tensor_of(const char* name, const IValue& found) const {
    if (has_numbers && (found.isInt() || found.isDouble()))
      return at::scalar_tensor(found.toScalar(), parameter.options().device(at::kCPU));
    if (!found.isTensor()) fail(name, "a tensor", found);
    const at::Tensor tensor = found.toTensor();
    if (has_numbers && tensor.dim() == 0) return tensor.clone();
    if (tensor.sizes() != parameter.sizes() || tensor.scalar_type() != parameter.scalar_type())
      throw CheckpointError(concat(where, ": '", name, "': expected ", parameter.scalar_type(), ' ',
                                   parameter.sizes(), ", found ", tensor.scalar_type(), ' ',
                                   tensor.sizes()));
    return tensor.clone(at::MemoryFormat::Contiguous);
  }
};

/// Whether a state has tensors, not only the number of steps.
template <class ParamState>
bool has_state(ParamState& state) {
  if constexpr (std::same_as<ParamState, torch::optim::LBFGSParamState>) return true;
  const bool has_first = detail::tensors_of(state).front()->defined();
  if constexpr (!std::same_as<ParamState, torch::optim::SGDParamState>) return has_first;
  return has_first || dynamic_cast<detail::LowPrecisionFields*>(&state) != nullptr;
}

/// Checks that the state has every tensor that the next step needs.
template <class Options, class ParamState>
void check_complete(const Options& options, ParamState& state, const std::string& where) {
  const auto check = [&](bool is_complete, const char* name) {
    if (!is_complete) throw CheckpointError(concat(where, ": found only a part of ", name));
  };
  if constexpr (std::same_as<Options, torch::optim::LBFGSOptions>) {
    check(detail::is_complete(state), "LBFGS's state");
  } else if constexpr (!std::same_as<Options, torch::optim::SGDOptions>) {
    constexpr bool is_adam = detail::AdamLikeOptions<Options>;
    for (const std::string_view needed : detail::future_fields(options)) {
      detail::visit(state, [&]<class Value>(const char* name, const Value& value) {
        if constexpr (std::same_as<Value, at::Tensor>)
          check(name != needed || value.defined(), is_adam ? "Adam's state" : "RMSprop's state");
      });
    }
  }
}

template <class Class>
struct Kind {
  using Options = typename Class::Options;
  using ParamState = typename Class::ParamState;
  /// Distinguishes AdamW from Adam in Python's format.
  static constexpr bool decoupled_weight_decay = std::same_as<Options, torch::optim::AdamWOptions>;

  IValue write(const Optimizer& optimizer) const {
    GenericDict states = empty_dict();
    auto groups = empty_list();
    const auto& by_parameter = detail::whole_state(optimizer);
    std::int64_t index = 0;
    for (const auto& group : optimizer.param_groups()) {
      auto indices = empty_list();
      for (const at::Tensor& parameter : group.params()) {
        if (auto* const state = detail::find_state(by_parameter, parameter)) {
          GenericDict fields = empty_dict();
          detail::visit(static_cast<ParamState&>(*state), Writer{fields});
          states.insert(index, fields);
        }
        indices.push_back(index++);
      }
      GenericDict fields = empty_dict();
      Options options = static_cast<const Options&>(group.options());
      detail::visit(options, Writer{fields});
      fields.insert("maximize", false);
      if constexpr (decoupled_weight_decay || std::same_as<Options, torch::optim::AdamOptions>)
        fields.insert("decoupled_weight_decay", decoupled_weight_decay);
      fields.insert("params", indices);
      groups.push_back(fields);
    }
    GenericDict dict = empty_dict();
    dict.insert("state", states);
    dict.insert("param_groups", groups);
    return dict;
  }

  void load(Optimizer& optimizer, const GenericDict& states,
            const c10::impl::GenericList& groups) const {
    std::vector<Options> options;
    detail::ParamStates new_states;
    for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      const std::string where = concat("optimizer: group ", g);
      const IValue found = groups.get(g);
      if (!found.isGenericDict()) throw CheckpointError(concat(where, ": expected a dict"));
      const GenericDict group = found.toGenericDict();
      options.push_back(static_cast<const Options&>(optimizer.param_groups()[g].options()));
      detail::visit(options.back(), Reader{.dict = group, .where = where});
      check_same_rule(group, where);
      load_states(optimizer, g, group, states, options.back(), where, new_states);
    }
    if (const auto* sharded = detail::ShardedParameters::of(optimizer)) sharded->cut(new_states);
    optimizer.state() = std::move(new_states);
    for (std::size_t g = 0; g < options.size(); ++g)
      static_cast<Options&>(optimizer.param_groups()[g].options()) = options[g];
  }

 private:
  static bool flag(const GenericDict& group, const char* name) {
    const auto found = group.find(name);
    return found != group.end() && found->value().isBool() && found->value().toBool();
  }

  void check_same_rule(const GenericDict& group, const std::string& where) const {
    if (flag(group, "maximize"))
      throw CheckpointError(
          concat(where, ": 'maximize' is set, which LibTorch's C++ optimizers do not support"));
    if (group.find("decoupled_weight_decay") != group.end() &&
        flag(group, "decoupled_weight_decay") != decoupled_weight_decay)
      throw CheckpointError(concat(where, ": expected ", decoupled_weight_decay ? "AdamW" : "Adam",
                                   ", found ", decoupled_weight_decay ? "Adam" : "AdamW"));
  }

  static void load_states(const Optimizer& optimizer, std::size_t g, const GenericDict& group,
                          const GenericDict& states, const Options& options,
                          const std::string& where, detail::ParamStates& new_states) {
    const std::vector<at::Tensor>& parameters = optimizer.param_groups()[g].params();
    const auto list = group.find("params");
    if (list == group.end() || !list->value().isList() ||
        list->value().toListRef().size() != parameters.size())
      throw CheckpointError(concat(where, ": expected ", parameters.size(), " parameters, found ",
                                   list != group.end() && list->value().isList()
                                       ? concat(list->value().toListRef().size())
                                       : "none"));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto found = states.find(list->value().toListRef()[p]);
      if (found == states.end()) continue;
      const std::string here = concat(where, ", parameter ", p);
      if (!found->value().isGenericDict()) throw CheckpointError(concat(here, ": expected a dict"));
      auto state = Class::new_state(optimizer, parameters[p]);
      const GenericDict fields = found->value().toGenericDict();
      constexpr bool is_flat = std::same_as<ParamState, torch::optim::LBFGSParamState>;
      detail::visit(*state,
                    Reader{.dict = fields,
                           .where = here,
                           .parameter = is_flat ? detail::flat_shape(parameters)
                                                : detail::state_like(optimizer, parameters[p]),
                           .has_numbers = is_flat});
      if (!has_state(*state)) continue;
      check_complete(options, *state, here);
      if (!detail::has_low_precision_fields(optimizer, parameters[p], *state))
        throw CheckpointError(concat(here, ": expected the state of LowPrecision::",
                                     name(detail::low_precision_of(optimizer)),
                                     ", found that of another optimizer"));
      new_states[parameters[p].unsafeGetTensorImpl()] = std::move(state);
    }
  }
};

/// Calls fn with the Kind of the optimizer.
template <class Function>
void with_kind(const Optimizer& optimizer, const Function& fn) {
  detail::check_listed_once(optimizer, "state_dict");
  const bool is_known =
      detail::with_class_of(optimizer, [&]<class Class>(const Class&) { fn(Kind<Class>{}); });
  if (is_known) return;
  throw InvalidArgument(concat("state_dict: got ", c10::demangle(typeid(optimizer).name()),
                               ", expected SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS"));
}

}  // namespace

c10::IValue state_dict(const Optimizer& optimizer) {
  IValue dict;
  with_kind(optimizer, [&](const auto& kind) { dict = kind.write(optimizer); });
  return dict;
}

void load_state_dict(Optimizer& optimizer, const c10::IValue& dict) {
  const auto part = [&](const char* name) {
    if (!dict.isGenericDict())
      throw CheckpointError(concat("optimizer: expected a state dict, found ", dict.tagKind()));
    const GenericDict parts = dict.toGenericDict();
    const auto found = parts.find(name);
    if (found == parts.end()) throw CheckpointError(concat("optimizer: found no '", name, "'"));
    return IValue(found->value());
  };
  with_kind(optimizer, [&](const auto& kind) {
    const IValue states = part("state");
    const IValue groups = part("param_groups");
    if (!states.isGenericDict() || !groups.isList() ||
        groups.toListRef().size() != optimizer.param_groups().size())
      throw CheckpointError(concat("optimizer: expected a state and ",
                                   optimizer.param_groups().size(),
                                   " param_groups, found other values"));
    detail::as_checkpoint_error(
        "optimizer", [&] { kind.load(optimizer, states.toGenericDict(), groups.toList()); });
  });
}

}  // namespace lockstep
