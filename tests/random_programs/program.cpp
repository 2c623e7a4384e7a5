#include "tests/random_programs/program.h"

#include <algorithm>
#include <sstream>

#include "core/text.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;
using lockstep::detail::joined;

/// The name of an enumerator; names: of all, in their order.
const char* name(const std::vector<const char*>& names, auto value) {
  return names.at(static_cast<std::size_t>(value));
}

std::string numbers(Mask mask) {
  std::string text;
  for (int i = 0; mask >> i != 0; ++i) {
    if (has(mask, i)) text += concat(text.empty() ? "" : ", ", i);
  }
  return text.empty() ? "none" : text;
}

std::string text_of(const Backward& op) {
  std::string text = op.update ? "backward_and_update" : "backward";
  const char* joint = " ";
  for (const auto& path : op.paths) {
    text += joint + joined(path, ">");
    joint = op.separate ? ", then " : " + ";
  }
  if (op.local != 0) text += concat(", no_sync ", numbers(op.local));
  if (op.forwards_first) text += op.reversed ? ", forwards first, in reverse" : ", forwards first";
  if (op.evaluated != 0) text += concat(", evaluation mode in paths ", numbers(op.evaluated));
  if (op.twice) text += ", the graph twice";
  if (op.collective != Collective::none)
    text += concat(", through ", name({"none", "all_reduce", "all_reduce (mean)", "all_gather",
                                       "reduce_scatter", "broadcast"},
                                      op.collective));
  if (op.swapped >= 0) text += concat(", in the other order on rank ", op.swapped);
  if (op.without_loss != 0) text += concat(", no loss on ranks ", numbers(op.without_loss));
  if (!op.weights.empty()) text += concat(", weights ", joined(op.weights, ", "));
  for (std::size_t rank = 0; rank < op.layers.size(); ++rank) {
    text += concat(rank == 0 ? "; layers of rank " : "; rank ", rank, ':');
    for (const int unit : units_of(op)) {
      text += concat(" {", numbers(op.layers[rank][static_cast<std::size_t>(unit)]), '}');
    }
  }
  return concat(text, "; data ", op.data);
}

std::string text_of(const ZeroGrad& op) {
  return concat("zero_grad ", op.unit, " of the ",
                name({"optimizer", "module", "front end"}, op.by),
                op.set_to_none ? "" : ", to zero");
}

std::string text_of(const Step& op) {
  return concat("step ", op.unit, op.weights.empty() ? "" : ", weights ", joined(op.weights, ", "));
}

std::string text_of(const Clip& op) { return concat("clip ", op.unit, " to ", op.norm); }

std::string text_of(const SetGradient& op) {
  return concat(
      "set gradient ", op.unit, ": ",
      name({"assign", "assign what autograd::grad gives", "add", "add to one element"}, op.how),
      ", parameters ", numbers(op.parameters), ", ranks ", numbers(op.ranks), "; data ", op.data);
}

std::string text_of(const Freeze& op) {
  return concat(op.frozen ? "freeze " : "unfreeze ", op.unit, ": parameter ", op.parameter);
}

std::string text_of(const Keep& op) {
  return concat("keep gradients ", op.unit, ": ", name({"handles", "detached", "views"}, op.how),
                " of parameters ", numbers(op.parameters));
}

std::string text_of(const Weigh& op) {
  return concat("weigh ", op.unit, ": ", joined(op.weights, ", "));
}

std::string text_of(const Save& op) { return concat("torch::save ", op.unit); }
std::string text_of(const Load& op) { return concat("torch::load ", op.unit); }
std::string text_of(const Convert& op) { return concat("to other precision and back ", op.unit); }
std::string text_of(const SaveCheckpoint& op) { return concat("save checkpoint ", op.unit); }
std::string text_of(const LoadCheckpoint& op) { return concat("load checkpoint ", op.unit); }
std::string text_of(const Synchronize& op) { return concat("synchronize ", op.unit); }
std::string text_of(const Rewrap& op) { return concat("wrap anew ", op.unit); }
std::string text_of(const Evaluate& op) {
  return concat("forward ", op.unit, op.with_graph ? "" : " without gradients", "; data ", op.data);
}

bool is_about_a_number(Refuse::What what) {
  using enum Refuse::What;
  return what == not_finite || what == negative_weight || what == thawed || what == second_weight ||
         what == listed_twice;
}

std::string text_of(const Refuse& op) {
  return concat(
      "must refuse ", op.unit, ": ",
      name({"a negative weight of rank ", "a second wrapper", "a gradient for frozen parameter ",
            "another precision", "a checkpoint of another model", "an output of unknown type",
            "a second weight of rank ", "an optimizer that lists twice parameter ",
            "a backward through a collective in place", "NaN in gradients of rank "},
           op.what),
      is_about_a_number(op.what) ? concat(op.number) : std::string());
}

std::string text_of(const Unit& unit) {
  std::string text =
      unit.front_end == FrontEnd::optimizer ? "DistributedOptimizer" : "DistributedDataParallel";
  text += concat(", ", unit.synchronisation.text(),
                 unit.bucket_each ? ", a bucket for each parameter" : "",
                 unit.check_finite ? ", check_finite" : "",
                 unit.verify_every == 1 ? "" : concat(", verify_every ", unit.verify_every),
                 unit.shared ? ", share_memory" : "",
                 unit.in_parts  ? ", shard gradients"
                 : unit.sharded ? ", shard"
                                : "",
                 unit.own_group ? ", a group of its own" : "", "; ",
                 name({"SGD", "SGD with momentum", "Adam"}, unit.updates),
                 unit.all_parameters ? "" : " without parameter 0", "; model of",
                 unit.single_precision ? " float32" : "");
  int parameter = 0;
  for (const Layer layer : unit.layers) {
    text += concat(' ', name({"linear", "scale", "gain", "transposed", "tied", "two", "wide",
                              "repeated", "norm", "seen"},
                             layer));
    const int next = parameter + parameter_count(layer);
    if (next > parameter) text += concat(" (", parameter);
    if (next > parameter + 1) text += concat('-', next - 1);
    if (next > parameter) text += ')';
    parameter = next;
  }
  if (unit.frozen >= 0) text += concat(", parameter ", unit.frozen, " frozen");
  if (unit.output != Output::tensor)
    text += concat(", returns ", name({"Tensor", "tuple", "vector", "optional", "map",
                                       "OrderedDict", "struct", "struct that cannot be watched"},
                                      unit.output));
  if (unit.buffers != Buffers::absent)
    text += concat(", a buffer: ",
                   name({"none", "from rank 0", "average", "each rank its own"}, unit.buffers));
  return text;
}

}  // namespace

std::string Synchronisation::text() const {
  switch (kind) {
    case Kind::fp32:
      return "fp32";
    case Kind::local_sgd:
      return concat("local_sgd:period=", period);
    case Kind::post_local_sgd:
      return concat("post_local_sgd:start=", start, ",period=", period);
    case Kind::partial_parameters:
      return "partial_update";
    case Kind::partial_gradients:
      return "partial_update:of=gradients";
    case Kind::lossy:
      return lossy;
  }
  return "";
}

int parameter_count(Layer layer) {
  if (layer == Layer::seen) return 0;
  return layer == Layer::linear || layer == Layer::two ? 2 : 1;
}

bool has_layer(const Unit& unit, Layer layer) {
  return std::find(unit.layers.begin(), unit.layers.end(), layer) != unit.layers.end();
}

bool uses_buffer(const Unit& unit) {
  return has_layer(unit, Layer::norm) || has_layer(unit, Layer::seen);
}

int parameter_count(const Unit& unit) {
  int count = 0;
  for (const Layer layer : unit.layers) count += parameter_count(layer);
  return count;
}

Mask parameters_of(const Unit& unit, Mask layers) {
  Mask parameters = 0;
  int first = 0;
  for (std::size_t i = 0; i < unit.layers.size(); ++i) {
    const int count = parameter_count(unit.layers[i]);
    if (has(layers, static_cast<int>(i))) parameters |= first_bits(count) << first;
    first += count;
  }
  return parameters;
}

Backward whole_backward(const Program& program, int unit) {
  std::vector<Mask> layers;
  for (const auto& each : program.units) {
    layers.push_back(first_bits(static_cast<int>(each.layers.size())));
  }
  return {.paths = {{unit}},
          .data = 1,
          .layers = std::vector(static_cast<std::size_t>(program.ranks), layers)};
}

bool is_about_a_backward(Refuse::What what) {
  using enum Refuse::What;
  return what == negative_weight || what == second_weight || what == not_finite;
}

std::vector<int> units_of(const Backward& backward) {
  std::vector<int> units;
  for (const auto& path : backward.paths) {
    for (const int unit : path) {
      if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
    }
  }
  return units;
}

std::string to_text(const Operation& operation) {
  return std::visit([](const auto& op) { return text_of(op); }, operation);
}

std::string to_text(const Program& program) {
  std::ostringstream out;
  out << "program " << program.seed << " on " << program.ranks << " ranks, " << program.width
      << " columns\n";
  for (std::size_t i = 0; i < program.units.size(); ++i) {
    out << "  unit " << i << ": " << text_of(program.units[i]) << '\n';
  }
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    out << "  " << i << ". " << to_text(program.operations[i]) << '\n';
  }
  return out.str();
}

}  // namespace lockstep::random_programs
