#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/cost/cost.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::plan {

/// Bytes of a parameter or gradient: a float32.
inline constexpr double element_bytes = 4;

/// A layer's parameters: a matrix, and vectors such as a bias. The matrix of a convolution has a
/// row for each output channel and a column for each weight of one output channel.
struct Layer {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t vectors = 0;    ///< elements of the vectors
  std::size_t positions = 1;  ///< number of positions per sample at which the matrix is applied
};

std::size_t parameters(std::span<const Layer> layers);
/// Multiplications of the forward of one sample.
double multiplications(std::span<const Layer> layers);

/// The properties of a model that determine the time of a step.
struct Model {
  std::string name;                ///< empty if only the number of parameters is known
  std::vector<Layer> layers = {};  ///< in the order of backward: the last layer first
  int batch = 1;                   ///< default of samples per rank and step

  /// Whether rows and columns are those of the parameters, as low-rank strategies need.
  bool shapes_known() const { return !name.empty(); }
  std::size_t parameters() const { return plan::parameters(layers); }
  /// Floating-point operations of one sample's forward and backward: two per multiplication;
  /// backward has twice those of forward.
  double operations() const { return 3 * 2 * multiplications(layers); }
};

/// "cnn", "mlp", "resnet9", "resnet18" or "resnet50": the models of examples/ and bench/train, and
/// He et al., "Deep Residual Learning for Image Recognition", 2016.
/// Throws: InvalidArgument listing the names.
Model find_model(std::string_view name);

/// A model of which only the number of parameters is known: layers of a million parameters, each
/// used once per sample.
Model model_of(std::size_t parameters);

/// "none", "optimizer" or "gradients".
/// Throws: InvalidArgument listing the names.
Shard parse_shard(std::string_view text);

/// Elements of optimizer state for each parameter, of an optimizer of torch::optim by its name:
/// "sgd" 0, "momentum", "rmsprop" and "adagrad" 1, "adam" and "adamw" 2, "amsgrad" 3.
/// Throws: InvalidArgument listing the names.
int state_tensors(std::string_view optimizer);

/// How a world of equal hosts keeps a model.
struct Keeping {
  Shard shard = Shard::none;
  bool share_memory = false;  ///< one copy of parameters and state for the ranks of a host
  int state_tensors = 0;
  int nodes = 1;
  int ranks_per_node = 1;
};

/// Memory of float32 parameters, and of what belongs to them. Units: bytes.
struct ModelMemory {
  double of_rank = 0;  ///< parameters, gradients and state of one rank
  double shared = 0;   ///< of a host, beside those of its ranks

  double of_host(int ranks) const { return shared + ranks * of_rank; }
};

/// Memory for each parameter. docs/plan.md has the table.
/// Throws: InvalidArgument for shared memory together with sharding.
ModelMemory bytes_per_parameter(const Keeping& keeping);

/// The largest number of parameters whose memory fits into a host, beside other_bytes of each rank.
double largest_model(const Keeping& keeping, double host_bytes, double other_bytes);

/// A strategy whose cost can be forecast.
struct Strategy {
  enum class Kind { fp32, half, topk, int8, power_sgd, local_sgd };

  Kind kind = Kind::fp32;
  double value = 0;  ///< topk: ratio; power_sgd: rank; local_sgd: period
  std::string text = {};

  /// Whether its cost depends on the shapes of the parameters.
  bool needs_shapes() const { return kind == Kind::power_sgd; }
};

/// Parses a text in the format of lockstep::parse_strategy(): "topk:0.01", "power_sgd:rank=4".
/// Throws: InvalidArgument naming the value and the expected values. Also for strategies whose
/// traffic depends on the data, or that exchange as much as fp32 or more.
Strategy parse_strategy(std::string_view text);

/// The cost of a bucket's exchange; all ranks exchange at the same time.
struct Exchange {
  Traffic traffic = {};
  double coding = 0;  ///< seconds in which a rank selects, encodes and decodes
};

/// The cost of exchanging a bucket of these layers; the mean over steps if not every step
/// exchanges. docs/algorithms.md has the bytes.
/// If strategy.needs_shapes(), the layers must have the shapes of the parameters.
Exchange exchange(const Strategy& strategy, std::span<const Layer> layers,
                  const Placement& placement);

/// The description of a training step whose time is forecast.
struct Setting {
  Model model = {};
  /// With sharding, half of the exchange, the reduce_scatter of gradients, is in backward. The
  /// other half, the all_gather of parameters, follows the update, and nothing hides it.
  Keeping keeping = {};
  Costs costs = {};
  int batch = 1;       ///< samples per rank and step
  double compute = 0;  ///< seconds of a rank's step without exchange; a third is forward
  double overlap = 1;  ///< fraction of backward's time in which the network can send
};

/// Forecast of a training step. Units: seconds, bytes.
struct Forecast {
  Strategy strategy = {};
  double coding = 0;      ///< encoding and decoding
  double memory = 0;      ///< exchange by the ranks' processors, in shared memory
  double network = 0;     ///< exchange between hosts
  double hidden = 0;      ///< part of network that overlaps with backward
  double sent = 0;        ///< bytes that leave a host
  double step = 0;        ///< the whole step
  double efficiency = 1;  ///< compute ÷ step
  double throughput = 0;  ///< samples per second of all ranks
};

/// Forecasts the time of a step. Buckets of up to 25 MiB are exchanged in sequence. Each exchange
/// begins when backward has reached the bucket's last layer; backward's time is divided by
/// multiplications. Exchange in memory adds to the compute time, exchange between hosts overlaps
/// with it.
/// Throws: InvalidArgument if the strategy needs parameter shapes that the model lacks, or is not
/// fp32 with sharding or shared memory.
Forecast forecast(const Setting& setting, const Strategy& strategy);

/// The layers of each bucket, in the order of exchange. The first bucket ends at 1 MiB, others at
/// 25 MiB; a larger layer has a bucket of its own.
std::vector<std::vector<Layer>> buckets(const Model& model);

/// A measured all_reduce of float32 in group memory.
struct Measurement {
  bool over_network = false;  ///< between hosts with one rank each, over MPI; else on one host
  int ranks = 2;
  double bytes = 0;  ///< of one rank's buffer
  double seconds = 0;
};

/// The costs that minimise the sum of squared relative errors between the cost formulas and the
/// measurements. Fits `synchronization` and `moved_byte` to those in memory, `remote_message` and
/// `sent_byte` to those over the network. A cost without measurements, or with a fit below zero,
/// keeps its value.
Costs fit(const Costs& costs, const std::vector<Measurement>& measurements);

}  // namespace lockstep::plan
