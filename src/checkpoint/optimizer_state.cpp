#include "checkpoint/optimizer_state.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/json_depth.h"
#include "core/text.h"
#include "formats/state_dict.h"
#include "lockstep/error.h"
#include "parallel/update/optimizer_fields.h"
#include "parallel/update/own_step.h"

namespace lockstep::inline v0_2::detail {

namespace {

using nlohmann::json;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using Tensors = std::map<std::string, at::Tensor>;

// Every optimizer can serialize itself to an archive and load itself from one. This file converts
// the values of archives to and from a checkpoint.

/// Key of the LowPrecision of a description. Absent for nearest.
constexpr const char* low_precision_key = "low_precision";

std::string kind_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(class_of(optimizer).name());
}

/// Parameter names by TensorImpl, the key of an optimizer's state.
using ParameterNames = std::map<const void*, std::string>;

/// The names under which a checkpoint stores an optimizer's state.
ParameterNames names_of(const torch::optim::Optimizer& optimizer, const ModelView& model) {
  const auto named = model.parameters();
  // LibTorch cannot load the state of a parameter that occurs twice.
  check_listed_once(optimizer, "Checkpoint", named);
  ParameterNames names;
  for (const auto& [name, tensor] : named) names.emplace(tensor.unsafeGetTensorImpl(), name);
  return names;
}

std::string key_of(const at::Tensor& parameter) {
  return std::to_string(reinterpret_cast<std::size_t>(parameter.unsafeGetTensorImpl()));
}

const std::string& name_of(const at::Tensor& parameter, const ParameterNames& names) {
  const auto found = names.find(parameter.unsafeGetTensorImpl());
  if (found == names.end())
    throw CheckpointError(concat("the optimizer has a parameter of shape ", parameter.sizes(),
                                 " that is not in the model"));
  return found->second;
}

json encode(const c10::IValue& value, const std::string& where, Tensors& tensors) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble() && std::isfinite(value.toDouble())) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isTensor()) {
    tensors[where] = value.toTensor();
    return {{"tensor", where}};
  }
  if (value.isTuple()) {
    json parts = json::array();
    for (const c10::IValue& part : value.toTupleRef().elements())
      parts.push_back(encode(part, concat(where, '/', parts.size()), tensors));
    return {{"tuple", parts}};
  }
  if (value.isDouble())
    throw CheckpointError(
        concat(where, ": cannot store ", value.toDouble(), ", expected a finite number"));
  throw CheckpointError(concat(where, ": cannot store ", value.tagKind()));
}

const at::Tensor& tensor_at(const json& name, const Tensors& tensors) {
  const auto found = tensors.find(name.get<std::string>());
  if (found == tensors.end()) throw CheckpointError(concat("tensor ", name.dump(), " is missing"));
  return found->second;
}

c10::IValue decode(const json& value, const Tensors& tensors) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.contains("tensor")) return tensor_at(value["tensor"], tensors);
  if (value.contains("tuple")) {
    std::vector<c10::IValue> parts;
    for (const json& part : value["tuple"]) parts.push_back(decode(part, tensors));
    return c10::ivalue::Tuple::create(std::move(parts));
  }
  throw CheckpointError(concat("cannot read ", value.dump()));
}

OutputArchive decode_all(const json& fields, const Tensors& tensors, const OutputArchive& within) {
  OutputArchive archive(within.compilation_unit());
  for (const auto& [key, value] : fields.items()) archive.write(key, decode(value, tensors));
  return archive;
}

// LibTorch can read an archive only from its file format.
std::string bytes_of(OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

InputArchive reopen(const std::string& bytes) {
  std::istringstream stream(bytes);
  InputArchive read;
  read.load_from(stream);
  return read;
}

template <class Part>
std::string archive_of(const Part& part) {
  OutputArchive archive;
  part.serialize(archive);
  return bytes_of(archive);
}

/// Assigns to the options objects. Replacing them would invalidate the program's references.
void load_options(torch::optim::Optimizer& optimizer, const std::vector<std::string>& archives) {
  for (std::size_t g = 0; g < archives.size(); ++g) {
    InputArchive archive = reopen(archives[g]);
    optimizer.param_groups()[g].options().serialize(archive);
  }
}

/// An archive for the load() of an optimizer of any class, with the current addresses of the
/// parameters as keys. LibTorch takes quadratic time for it.
std::string archive_for(const json& description, const Tensors& tensors,
                        const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  const auto count = [](std::size_t size) { return at::tensor(static_cast<std::int64_t>(size)); };
  OutputArchive archive;
  OutputArchive states(archive.compilation_unit());
  OutputArchive groups(archive.compilation_unit());
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  groups.write("param_groups/size", count(optimizer.param_groups().size()));
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const std::vector<at::Tensor>& parameters = optimizer.param_groups()[g].params();
    OutputArchive group(archive.compilation_unit());
    group.write("params/size", count(parameters.size()));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const std::string& name = name_of(parameters[p], names);
      group.write(concat("params/", p), c10::IValue(key_of(parameters[p])));
      if (!description.at("state").contains(name)) continue;
      OutputArchive state = decode_all(description.at("state").at(name), tensors, archive);
      states.write(key_of(parameters[p]), state);
    }
    OutputArchive options =
        decode_all(description.at("groups").at(g).at("options"), tensors, archive);
    group.write("options", options);
    groups.write(concat("param_groups/", g), group);
  }
  archive.write("state", states);
  archive.write("param_groups", groups);
  return bytes_of(archive);
}

template <class Function>
auto as_checkpoint_errors(const Function& fn) {
  try {
    return as_checkpoint_error("optimizer", fn);
  } catch (const json::exception& error) {
    throw CheckpointError(concat("optimizer: ", error.what()));
  }
}

/// parameter: of the sizes and dtype of its state.
void check_fields(const json& fields, const std::string& name, const at::Tensor& parameter,
                  const Tensors& tensors) {
  for (const auto& [key, value] : fields.items()) {
    if (!value.is_object() || !value.contains("tensor")) continue;
    const at::Tensor& tensor = tensor_at(value["tensor"], tensors);
    if (tensor.sizes() != parameter.sizes() || tensor.scalar_type() != parameter.scalar_type())
      throw CheckpointError(concat("tensor ", value["tensor"].dump(), ": expected ",
                                   parameter.scalar_type(), ' ', parameter.sizes(),
                                   " as parameter '", name, "', found ", tensor.scalar_type(), ' ',
                                   tensor.sizes()));
  }
}

/// The fields that a part of an optimizer serializes.
template <class Part>
json archived(const Part& part, const std::string& where, Tensors& tensors) {
  InputArchive archive = reopen(archive_of(part));
  json fields = json::object();
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    fields[key] = encode(value, where + key, tensors);
  }
  return fields;
}

/// Without the copies of an archive where the class of the state is known.
json encode_state(torch::optim::OptimizerParamState& state, const std::string& where,
                  Tensors& tensors) {
  const auto fields = fields_of(state, FieldFormat::checkpoint);
  if (!fields) return archived(state, where, tensors);
  json result = json::object();
  for (const auto& field : *fields) {
    const std::string& name = field.key().toStringRef();
    result[name] = encode(field.value(), where + name, tensors);
  }
  return result;
}

/// Visitor that moves the tensors of a parameter's state to the parameter's device.
struct MoveTo {
  at::Device device;

  template <class Number>
  void operator()(const char*, const Number&) const {}
  void operator()(const char*, at::Tensor& value) const {
    if (value.defined()) value = value.to(device);
  }
  void operator()(const char* name, std::deque<at::Tensor>& values) const {
    for (at::Tensor& value : values) (*this)(name, value);
  }
};

/// Moves the state that an optimizer has loaded by itself, which is on the CPU, to the parameters'
/// devices.
void move_to_parameters(torch::optim::Optimizer& optimizer) {
  for (const at::Tensor& parameter : all_parameters(optimizer)) {
    auto* const state = find_state(optimizer.state(), parameter);
    if (parameter.is_cpu() || state == nullptr || visit_known(*state, MoveTo{parameter.device()}))
      continue;
    throw CheckpointError(concat("optimizer: got ", kind_of(optimizer), " with parameters on ",
                                 parameter.device(),
                                 ", expected SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS: save "
                                 "the model without its optimizer"));
  }
}

void restore_states(torch::optim::Optimizer& optimizer, const json& description,
                    const Tensors& tensors, const ParameterNames& names) {
  if (!with_class_of(optimizer, [](const auto&) {})) {
    InputArchive all = reopen(archive_for(description, tensors, optimizer, names));
    optimizer.load(all);
    return move_to_parameters(optimizer);
  }
  const json& states = description.at("state");
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    for (std::size_t p = 0; p < group.params().size(); ++p) {
      const std::string& name = name_of(group.params()[p], names);
      if (!states.contains(name)) continue;
      auto fields = empty_dict();
      for (const auto& [key, value] : states.at(name).items())
        fields.insert(key, decode(value, tensors));
      auto state = read_state(optimizer, group.options(), fields,
                              {.group = g,
                               .index = p,
                               .parameter = concat("optimizer: parameter '", name, '\''),
                               .tensors = concat(optimizer_prefix, name, '/')});
      if (state != nullptr)
        optimizer.state()[group.params()[p].unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

/// Compares the names of options. LibTorch would keep one that the file lacks, and ignore others.
void check_options(const json& found, const json& own, std::size_t g) {
  const auto names_in = [](const json& options) {
    std::vector<std::string> names;
    for (const auto& [key, value] : options.items()) names.push_back(key);
    return joined(names, ", ");
  };
  if (names_in(found) == names_in(own)) return;
  throw CheckpointError(concat("optimizer: group ", g, ": expected the options ", names_in(own),
                               ", found ", names_in(found)));
}

json check_description(const OptimizerState& state, const torch::optim::Optimizer& optimizer,
                       const ParameterNames& names) {
  check_json_depth(state.description, "optimizer");
  json description = json::parse(state.description);
  const std::string kind = description.at("kind").get<std::string>();
  if (kind != kind_of(optimizer))
    throw CheckpointError(concat("optimizer: expected ", kind_of(optimizer), ", found ", kind));
  const std::string own_mode(name(low_precision_of(optimizer)));
  const std::string mode =
      description.value(low_precision_key, std::string(name(LowPrecision::nearest)));
  if (mode != own_mode)
    throw CheckpointError(concat("optimizer: expected the state of LowPrecision::", own_mode,
                                 ", found that of LowPrecision::", mode,
                                 ": construct the optimizer with LowPrecision::", mode));
  const auto& groups = optimizer.param_groups();
  if (description.at("groups").size() != groups.size())
    throw CheckpointError(concat("optimizer: expected ", groups.size(), " parameter groups, found ",
                                 description.at("groups").size()));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    json parameters = json::array();
    for (const at::Tensor& parameter : groups[g].params()) {
      const std::string& name = name_of(parameter, names);
      parameters.push_back(name);
      if (description.at("state").contains(name) &&
          class_of(optimizer) != typeid(torch::optim::LBFGS))
        check_fields(description.at("state").at(name), name, state_like(optimizer, parameter),
                     state.tensors);
    }
    if (const json& found = description.at("groups").at(g).at("parameters"); found != parameters)
      throw CheckpointError(concat("optimizer: group ", g, ": expected parameters ",
                                   parameters.dump(), ", found ", found.dump()));
  }
  return description;
}

}  // namespace

OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const ModelView& model) {
  return as_checkpoint_errors([&] {
    const auto names = names_of(optimizer, model);
    OptimizerState result;
    const auto& states = whole_state(optimizer);
    json description = {
        {"kind", kind_of(optimizer)}, {"groups", json::array()}, {"state", json::object()}};
    if (const auto mode = low_precision_of(optimizer); mode != LowPrecision::nearest)
      description[low_precision_key] = name(mode);
    for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      json parameters = json::array();
      for (const at::Tensor& parameter : optimizer.param_groups()[g].params()) {
        const std::string& name = name_of(parameter, names);
        parameters.push_back(name);
        if (auto* const own = find_state(states, parameter))
          description["state"][name] =
              encode_state(*own, concat(optimizer_prefix, name, '/'), result.tensors);
      }
      description["groups"].push_back(
          {{"parameters", parameters},
           {"options", archived(optimizer.param_groups()[g].options(),
                                concat(optimizer_prefix, g, '/'), result.tensors)}});
    }
    result.description = description.dump();
    return result;
  });
}

std::map<std::string, at::Tensor> future_state(const torch::optim::Optimizer& optimizer,
                                               const ModelView& model) {
  const auto names = names_of(optimizer, model);
  std::map<std::string, at::Tensor> state;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad() || find_state(optimizer.state(), parameter)) continue;
      for (const char* field : future_fields(optimizer, group.options(), parameter))
        state.emplace(concat(optimizer_prefix, name_of(parameter, names), '/', field),
                      state_like(optimizer, parameter));
    }
  }
  return state;
}

PreparedOptimizer prepare_optimizer(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                                    const ModelView& model) {
  return as_checkpoint_errors([&] {
    const auto names = names_of(optimizer, model);
    const json description = check_description(state, optimizer, names);
    PreparedOptimizer own;
    PreparedOptimizer prepared;
    Tensors none;
    for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      const auto& options = optimizer.param_groups()[g].options();
      const json& found = description["groups"][g].at("options");
      check_options(found, archived(options, "", none), g);
      own.options.push_back(archive_of(options));
      OutputArchive archive = decode_all(found, state.tensors, OutputArchive());
      prepared.options.push_back(bytes_of(archive));
    }

    // The optimizer parses the file's options and state on trial.
    std::swap(own.state, optimizer.state());
    try {
      load_options(optimizer, prepared.options);
      restore_states(optimizer, description, state.tensors, names);
    } catch (...) {
      own.apply(optimizer);
      throw;
    }
    std::swap(prepared.state, optimizer.state());
    own.apply(optimizer);
    if (const auto* sharded = ShardedParameters::of(optimizer)) sharded->cut(prepared.state);
    return prepared;
  });
}

void PreparedOptimizer::apply(torch::optim::Optimizer& optimizer) {
  load_options(optimizer, options);
  optimizer.state() = std::move(state);
}

}  // namespace lockstep::detail
