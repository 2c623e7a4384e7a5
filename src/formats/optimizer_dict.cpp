#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/text.h"
#include "formats/state_dict.h"
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
using detail::empty_dict;
using detail::FieldFormat;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

c10::impl::GenericList empty_list() { return c10::impl::GenericList(c10::AnyType::get()); }

/// Visitor that writes each field.
struct Writer {
  GenericDict& dict;
  bool is_python = true;  ///< whether the format is that of Python

  void operator()(const char* name, double value) const {
    dict.insert(name, is_python ? IValue(value) : IValue(at::scalar_tensor(value, at::kDouble)));
  }
  void operator()(const char* name, bool value) const { dict.insert(name, value); }
  void operator()(const char* name, const std::tuple<double, double>& value) const {
    dict.insert(name, c10::ivalue::Tuple::create(std::get<0>(value), std::get<1>(value)));
  }
  void operator()(const char* name, std::int64_t step) const {
    const auto count = static_cast<double>(step);
    dict.insert(name, is_python ? IValue(at::scalar_tensor(count, at::kFloat)) : IValue(step));
  }
  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) dict.insert(name, value);
  }
  void operator()(const char* name, const std::deque<at::Tensor>& values) const {
    auto list = empty_list();
    for (const at::Tensor& value : values) list.push_back(value);
    dict.insert(name, is_python ? IValue(list) : IValue(c10::ivalue::Tuple::create(list.vec())));
  }
  template <class Value>
  void operator()(const char* name, const detail::Count<Value>& count) const {
    dict.insert(name, IValue(count.value));
  }
  void operator()(const char* name, const std::optional<std::string>& value) const {
    dict.insert(name, IValue(value));
  }
};

/// Visitor that reads each field.
struct Reader {
  const GenericDict& dict;
  std::string where;
  std::string tensors{};        ///< as in StatePlace
  at::Tensor like{};            ///< tensors must have its shape and dtype
  at::Device device{at::kCPU};  ///< of the copies

  [[noreturn]] void fail(const std::string& name, const std::string& expected,
                         const std::string& found) const {
    const auto named = tensors.empty() ? concat(where, ": '", name, '\'')
                                       : concat("optimizer: tensor \"", tensors, name, '"');
    throw CheckpointError(concat(named, ": expected ", expected, ", found ", found));
  }
  IValue at(const char* name) const {
    const auto found = dict.find(name);
    if (found == dict.end()) throw CheckpointError(concat(where, ": found no '", name, "'"));
    return found->value();
  }

  double number(const char* name, const IValue& value) const {
    if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item<double>();
    if (value.isDouble()) return value.toDouble();
    if (value.isInt()) return static_cast<double>(value.toInt());
    fail(name, "a number", value.tagKind());
  }
  void operator()(const char* name, double& value) const { value = number(name, at(name)); }
  void operator()(const char* name, std::int64_t& step) const {
    const double value = number(name, at(name));
    if (!(std::abs(value) < 0x1p53) || std::trunc(value) != value)
      fail(name, "an integer", concat(value));
    step = static_cast<std::int64_t>(value);
  }
  void operator()(const char* name, bool& value) const {
    const IValue found = at(name);
    if (!found.isBool()) fail(name, "a bool", found.tagKind());
    value = found.toBool();
  }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    const IValue found = at(name);
    if (!found.isTuple() || found.toTupleRef().elements().size() != 2)
      fail(name, "two numbers", found.tagKind());
    const auto& parts = found.toTupleRef().elements();
    value = {number(name, parts[0]), number(name, parts[1])};
  }
  /// An absent field and None both mean that the tensor is undefined.
  void operator()(const char* name, at::Tensor& value) const {
    const auto found = dict.find(name);
    if (found == dict.end() || found->value().isNone()) return;
    value = tensor_of(name, found->value(), std::string_view(name) == "H_diag");
  }
  void operator()(const char* name, std::deque<at::Tensor>& values) const {
    const IValue found = at(name);
    if (!found.isList() && !found.isTuple()) fail(name, "a list", found.tagKind());
    for (const IValue& value :
         found.isList() ? found.toListRef() : found.toTupleRef().elements().asArrayRef()) {
      const auto part = tensors.empty() ? std::string(name) : concat(name, '/', values.size());
      values.push_back(tensor_of(part, value, std::string_view(name) == "ro"));
    }
  }
  void operator()(const char* name, const detail::Count<std::int64_t>& count) const {
    const IValue found = at(name);
    if (!found.isInt()) fail(name, "an integer", found.tagKind());
    count.value = found.toInt();
  }
  void operator()(const char* name, const detail::Count<std::optional<std::int64_t>>& count) const {
    const IValue found = at(name);
    if (!found.isInt() && !found.isNone()) fail(name, "an integer or None", found.tagKind());
    count.value = found.toOptional<std::int64_t>();
  }
  void operator()(const char* name, std::optional<std::string>& value) const {
    const IValue found = at(name);
    if (!found.isString() && !found.isNone()) fail(name, "a string or None", found.tagKind());
    value = found.toOptional<std::string>();
  }

 private:
  /// is_number: the tensor has one element, whatever the shape of the others; Python may have a
  /// number.
  at::Tensor tensor_of(const std::string& name, const IValue& found, bool is_number) const {
    if (is_number && (found.isInt() || found.isDouble()))
      return at::scalar_tensor(found.toScalar(), like.options().device(device));
    if (!found.isTensor()) fail(name, "a tensor", found.tagKind());
    const at::Tensor tensor = found.toTensor();
    const bool fits =
        is_number ? tensor.dim() == 0 && !tensor.is_complex()
                  : tensor.sizes() == like.sizes() && tensor.scalar_type() == like.scalar_type();
    if (!fits)
      fail(name, is_number ? "one number" : concat(like.scalar_type(), ' ', like.sizes()),
           concat(tensor.scalar_type(), ' ', tensor.sizes()));
    // The strides of Python's tensors are those of a Python program's parameters.
    const auto strides =
        tensors.empty() ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve;
    return tensor.to(device, tensor.scalar_type(), false, true, strides);
  }
};

void check_known(const Optimizer& optimizer) {
  detail::check_listed_once(optimizer, "state_dict");
  if (detail::with_class_of(optimizer, [](const auto&) {})) return;
  throw InvalidArgument(concat("state_dict: got ", c10::demangle(typeid(optimizer).name()),
                               ", expected SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS"));
}

/// Distinguishes AdamW from Adam in Python's format. No value for other optimizers.
std::optional<bool> decoupled_weight_decay(const Optimizer& optimizer) {
  const auto& own = detail::class_of(optimizer);
  if (own == typeid(torch::optim::Adam)) return false;
  return own == typeid(torch::optim::AdamW) ? std::optional(true) : std::nullopt;
}

bool flag(const GenericDict& group, const char* name) {
  const auto found = group.find(name);
  return found != group.end() && found->value().isBool() && found->value().toBool();
}

void check_same_rule(const Optimizer& optimizer, const GenericDict& group,
                     const std::string& where) {
  if (flag(group, "maximize"))
    throw CheckpointError(
        concat(where, ": 'maximize' is set, which LibTorch's C++ optimizers do not support"));
  const bool is_adamw = decoupled_weight_decay(optimizer).value_or(false);
  if (group.find("decoupled_weight_decay") != group.end() &&
      flag(group, "decoupled_weight_decay") != is_adamw)
    throw CheckpointError(concat(where, ": expected ", is_adamw ? "AdamW" : "Adam", ", found ",
                                 is_adamw ? "Adam" : "AdamW"));
}

/// The places of a group's parameters in the dict of states.
std::vector<IValue> places_of(const GenericDict& group, std::size_t expected,
                              const std::string& where) {
  const auto list = group.find("params");
  const bool is_list = list != group.end() && list->value().isList();
  if (!is_list || list->value().toListRef().size() != expected)
    throw CheckpointError(concat(where, ": expected ", expected, " parameters, found ",
                                 is_list ? concat(list->value().toListRef().size()) : "none"));
  return list->value().toListRef().vec();
}

void load_dict(Optimizer& optimizer, const GenericDict& states,
               const c10::impl::GenericList& groups) {
  auto& own_groups = optimizer.param_groups();
  std::vector<std::unique_ptr<OptimizerOptions>> options;
  detail::ParamStates new_states;
  for (std::size_t g = 0; g < own_groups.size(); ++g) {
    const std::string where = concat("optimizer: group ", g);
    const IValue found = groups.get(g);
    if (!found.isGenericDict()) throw CheckpointError(concat(where, ": expected a dict"));
    const GenericDict group = found.toGenericDict();
    options.push_back(own_groups[g].options().clone());
    detail::visit_known(*options.back(), Reader{.dict = group, .where = where});
    check_same_rule(optimizer, group, where);
    const auto& parameters = own_groups[g].params();
    const auto places = places_of(group, parameters.size(), where);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto state = states.find(places[p]);
      if (state == states.end()) continue;
      const std::string here = concat(where, ", parameter ", p);
      if (!state->value().isGenericDict()) throw CheckpointError(concat(here, ": expected a dict"));
      auto own = detail::read_state(optimizer, *options.back(), state->value().toGenericDict(),
                                    {.group = g, .index = p, .parameter = here});
      if (own != nullptr) new_states[parameters[p].unsafeGetTensorImpl()] = std::move(own);
    }
  }
  if (const auto* sharded = detail::ShardedParameters::of(optimizer)) sharded->cut(new_states);
  optimizer.state() = std::move(new_states);
  detail::with_class_of(optimizer, [&]<class Class>(const Class&) {
    using Options = typename Class::Options;
    for (std::size_t g = 0; g < options.size(); ++g)
      static_cast<Options&>(own_groups[g].options()) = static_cast<const Options&>(*options[g]);
  });
}

}  // namespace

std::optional<GenericDict> detail::fields_of(OptimizerParamState& state, FieldFormat format) {
  GenericDict fields = empty_dict();
  if (!visit_known(state, Writer{.dict = fields, .is_python = format == FieldFormat::python}))
    return std::nullopt;
  return fields;
}

std::unique_ptr<OptimizerParamState> detail::read_state(const Optimizer& optimizer,
                                                        const OptimizerOptions& options,
                                                        const GenericDict& fields,
                                                        const StatePlace& place) {
  const auto& parameters = optimizer.param_groups()[place.group].params();
  const at::Tensor& parameter = parameters[place.index];
  auto state = new_state(optimizer, parameter);
  auto* const lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(state.get());
  visit_known(*state, Reader{.dict = fields,
                             .where = place.parameter,
                             .tensors = place.tensors,
                             .like = lbfgs != nullptr ? flat_shape(parameters)
                                                      : state_like(optimizer, parameter),
                             .device = parameter.device()});
  // The optimizer has it for a parameter that no step has updated.
  const bool is_empty = lbfgs == nullptr &&
                        dynamic_cast<LowPrecisionFields*>(state.get()) == nullptr &&
                        std::ranges::none_of(detail::tensors_of(*state), &at::Tensor::defined);
  if (is_empty) return nullptr;
  const bool is_sgd = dynamic_cast<torch::optim::SGDParamState*>(state.get()) != nullptr;
  if (lbfgs != nullptr && !is_complete(*lbfgs))
    throw CheckpointError(concat(place.parameter, ": found only a part of LBFGS's state"));
  for (const std::string_view field : future_fields(optimizer, options, parameter)) {
    if (is_sgd && field == "momentum_buffer") continue;  // begins with the next gradient
    if (!find_tensor(*state, field)->defined())
      throw CheckpointError(concat(place.parameter, ": expected ", field, ", found none"));
  }
  return state;
}

c10::IValue state_dict(const Optimizer& optimizer) {
  check_known(optimizer);
  GenericDict states = empty_dict();
  auto groups = empty_list();
  const auto& by_parameter = detail::whole_state(optimizer);
  std::int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    auto indices = empty_list();
    for (const at::Tensor& parameter : group.params()) {
      if (auto* const state = detail::find_state(by_parameter, parameter))
        states.insert(index, detail::fields_of(*state, FieldFormat::python).value());
      indices.push_back(index++);
    }
    GenericDict fields = empty_dict();
    detail::visit_known(*group.options().clone(), Writer{fields});
    fields.insert("maximize", false);
    if (const auto decoupled = decoupled_weight_decay(optimizer))
      fields.insert("decoupled_weight_decay", *decoupled);
    fields.insert("params", indices);
    groups.push_back(fields);
  }
  GenericDict dict = empty_dict();
  dict.insert("state", states);
  dict.insert("param_groups", groups);
  return dict;
}

void load_state_dict(Optimizer& optimizer, const c10::IValue& dict) {
  check_known(optimizer);
  const auto part = [&](const char* name) {
    if (!dict.isGenericDict())
      throw CheckpointError(concat("optimizer: expected a state dict, found ", dict.tagKind()));
    const GenericDict parts = dict.toGenericDict();
    const auto found = parts.find(name);
    if (found == parts.end()) throw CheckpointError(concat("optimizer: found no '", name, "'"));
    return IValue(found->value());
  };
  const IValue states = part("state");
  const IValue groups = part("param_groups");
  if (!states.isGenericDict() || !groups.isList() ||
      groups.toListRef().size() != optimizer.param_groups().size())
    throw CheckpointError(concat("optimizer: expected a state and ",
                                 optimizer.param_groups().size(),
                                 " param_groups, found other values"));
  detail::as_checkpoint_error(
      "optimizer", [&] { load_dict(optimizer, states.toGenericDict(), groups.toList()); });
}

}  // namespace lockstep
