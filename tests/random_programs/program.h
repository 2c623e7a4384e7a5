#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

/// Random training programs: each is data that an oracle and an interpreter carry out. The oracle
/// holds all ranks' models in one process and uses LibTorch alone; the interpreter is one rank that
/// uses Lockstep.
namespace lockstep::random_programs {

/// Ranks, units, layers or parameters by number: bit i stands for number i.
using Mask = unsigned;

inline bool has(Mask mask, int number) { return (mask >> number & 1U) != 0; }
inline Mask first_bits(int count) { return (1U << count) - 1; }

enum class FrontEnd { data_parallel, optimizer };

/// y ↦ y + layer(y), where y has `Program::width` columns.
enum class Layer {
  linear,      ///< a Linear: two parameters
  scale,       ///< a factor for each column
  gain,        ///< one factor, a parameter without dimensions
  transposed,  ///< a matrix that is not contiguous in memory
  tied,        ///< a matrix that is used twice and registered under two names
  two,         ///< two matrices, one after the other
  wide,        ///< a vector of many elements
  repeated,    ///< a factor in a module that is registered twice
  norm,        ///< a batch norm: the buffer has its running statistics
  seen,        ///< the buffer as a factor: no parameter
};

/// The return type of the model's forward.
enum class Output {
  tensor,
  tuple,
  list,
  optional,
  map,
  ordered_dict,
  structure,  ///< a type of the user's, of which visit_tensors() tells the tensors
  opaque,     ///< one without
};

/// Treatment of the model's buffer, if it has one.
enum class Buffers { absent, from_rank0, average, own };

enum class Updates { sgd, momentum, adam };

struct Synchronisation {
  enum class Kind {
    fp32,
    local_sgd,
    post_local_sgd,
    partial_parameters,
    partial_gradients,
    lossy,  ///< compared between ranks only
  } kind = Kind::fp32;
  int period = 1;          ///< of local_sgd and post_local_sgd
  int start = 0;           ///< of post_local_sgd
  std::string lossy = {};  ///< text of a lossy strategy

  /// As lockstep::parse_strategy() takes it.
  std::string text() const;
};

/// A model with its optimizer and its wrapper.
struct Unit {
  FrontEnd front_end;
  Synchronisation synchronisation;
  std::vector<Layer> layers;
  Output output = Output::tensor;
  Buffers buffers = Buffers::absent;
  Updates updates = Updates::sgd;
  int frozen = -1;                ///< a parameter that requires no gradient from the start on
  bool all_parameters = true;     ///< otherwise the optimizer lacks parameter 0
  bool bucket_each = false;       ///< a bucket for each parameter, rather than one for all
  bool check_finite = false;      ///< gradients are tested for NaN and Inf
  int verify_every = 1;           ///< exchanges from one comparison of parameters to the next
  bool own_group = false;         ///< the wrapper's group is a split of the world
  bool single_precision = false;  ///< float32, rather than float64
  bool shared = false;            ///< one copy of the parameters for all ranks
  bool sharded = false;           ///< the optimizer's state is divided among the ranks
  bool in_parts = false;          ///< and averaged gradients
};

/// A differentiable collective, through which losses depend on the data of all ranks.
enum class Collective { none, all_reduce, mean, all_gather, reduce_scatter, broadcast };

/// Losses of paths through models, then backward(): of their sum, or of one after the other.
struct Backward {
  std::vector<std::vector<int>> paths;  ///< units that the data passes
  std::uint64_t data = 0;
  Mask local = 0;                            ///< units under no_sync()
  bool separate = false;                     ///< a backward for each path
  bool forwards_first = false;               ///< with separate: before the first backward
  bool reversed = false;                     ///< those backwards begin with that of the last path
  Mask evaluated = 0;                        ///< paths whose forwards run in evaluation mode
  bool twice = false;                        ///< the graph is kept, and differentiated once more
  Collective collective = Collective::none;  ///< of the first unit's output
  bool update = false;                       ///< by backward_and_update()
  int swapped = -1;                          ///< a rank that takes the paths in the other order
  Mask without_loss = 0;                     ///< ranks that call no backward
  std::vector<double> weights{};             ///< of each rank; empty: none are set
  /// Layers that take part, by rank and unit. A rank may use none: its loss reaches no parameter.
  std::vector<std::vector<Mask>> layers;
};

struct ZeroGrad {
  enum class By { optimizer, module, front_end };
  int unit;
  By by;
  bool set_to_none;
};

/// The front end's step, or the optimizer's where that is DistributedDataParallel.
struct Step {
  int unit;
  std::vector<double> weights{};
};

struct Clip {
  int unit;
  double norm;
};

/// Gradients that a user writes.
struct SetGradient {
  enum class How {
    assign,   ///< mutable_grad() = another tensor
    compute,  ///< the same by autograd::grad() of a loss
    add,      ///< add_() to the one that is there
    poke,     ///< the same to one element of it
  };
  int unit;
  How how;
  Mask parameters;
  Mask ranks;
  std::uint64_t data;
};

/// Handles of gradients that the program keeps from now on, in place of those that it has.
struct Keep {
  enum class How { handle, detached, view };
  int unit;
  How how;
  Mask parameters;
};

/// Each rank's weight in the next exchange.
struct Weigh {
  int unit;
  std::vector<double> weights;
};

struct Freeze {
  int unit;
  int parameter;
  bool frozen;
};

/// Operations without arguments, each a type of its own.
template <int number>
struct OfUnit {
  int unit;
};
/// torch::save and torch::load of the model. Each rank loads what it saved last.
using Save = OfUnit<0>;
using Load = OfUnit<1>;
/// to() another precision and back.
using Convert = OfUnit<2>;
/// lockstep::Checkpoint.
using SaveCheckpoint = OfUnit<3>;
using LoadCheckpoint = OfUnit<4>;
/// DistributedOptimizer::synchronize().
using Synchronize = OfUnit<5>;
/// The wrapper is destroyed, and the model wrapped again.
using Rewrap = OfUnit<6>;

/// A forward without a backward.
struct Evaluate {
  int unit;
  std::uint64_t data;
  bool with_graph;  ///< as in training, rather than under NoGradGuard
};

/// Something that every rank must refuse, and that changes nothing.
struct Refuse {
  enum class What {
    negative_weight,  ///< of one rank
    wrapped_twice,
    thawed,         ///< a parameter that was frozen when it was wrapped
    other_dtype,    ///< the model has become another precision
    other_layout,   ///< a checkpoint of another model
    opaque,         ///< a forward of a type that cannot be watched
    second_weight,  ///< another one before the same exchange, on one rank
    listed_twice,   ///< a parameter in an optimizer
    in_place,       ///< a backward through the result of a collective in place
    not_finite,     ///< NaN in the gradients of one rank
  };
  int unit;
  What what;
  int number = 0;  ///< the parameter or rank that it is about
};

using Operation =
    std::variant<Backward, ZeroGrad, Step, Clip, SetGradient, Keep, Weigh, Freeze, Save, Load,
                 Convert, SaveCheckpoint, LoadCheckpoint, Synchronize, Rewrap, Evaluate, Refuse>;

/// Whether a backward is refused. It ends with zero_grad(), and leaves no gradient that could be
/// wrong.
bool is_about_a_backward(Refuse::What what);

struct Program {
  std::uint64_t seed = 0;
  int ranks = 2;
  int width = 2;
  bool on_device = false;  ///< ranks use devices, on which less is legal
  std::vector<Unit> units;
  std::vector<Operation> operations;
};

int parameter_count(Layer layer);
/// Whether outputs depend on the model's buffer.
bool uses_buffer(const Unit& unit);
bool has_layer(const Unit& unit, Layer layer);
int parameter_count(const Unit& unit);
/// Those of the layers, in the order in which they are registered.
Mask parameters_of(const Unit& unit, Mask layers);

/// A backward of one unit with all its layers on all ranks.
Backward whole_backward(const Program& program, int unit);

/// Each unit that a path passes, once.
std::vector<int> units_of(const Backward& backward);

/// The operation's line in a listing.
std::string to_text(const Operation& operation);
/// The whole program as readable lines. Operations carry their numbers in the generated program.
std::string to_text(const Program& program);

}  // namespace lockstep::random_programs
