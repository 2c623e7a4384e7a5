#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
std::string_view name(Shard shard);
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

}  // namespace lockstep::plan
