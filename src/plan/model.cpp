#include <algorithm>
#include <array>

#include "core/enum_names.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "plan/forecast.h"

namespace lockstep::inline v0_2::plan {
namespace {

using detail::concat;
using Layers = std::vector<Layer>;

/// A fully connected layer with bias.
Layer linear(std::size_t inputs, std::size_t outputs) {
  return {.rows = outputs, .columns = inputs, .vectors = outputs};
}

/// A square convolution with bias, whose output has side × side positions.
Layer convolution(std::size_t inputs, std::size_t outputs, std::size_t kernel, std::size_t side) {
  return {.rows = outputs,
          .columns = inputs * kernel * kernel,
          .vectors = outputs,
          .positions = side * side};
}

/// The same without bias, followed by a batch norm with weight and bias.
Layer normed(std::size_t inputs, std::size_t outputs, std::size_t kernel, std::size_t side) {
  Layer layer = convolution(inputs, outputs, kernel, side);
  layer.vectors = 2 * outputs;
  return layer;
}

/// A ResNet for 224 × 224 images: four stages with these numbers of blocks. A bottleneck block has
/// three convolutions, the last with four times the channels.
Layers resnet(const std::array<int, 4>& blocks, bool bottleneck) {
  Layers layers{normed(3, 64, 7, 112)};
  std::size_t inputs = 64;
  std::size_t side = 56;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::size_t width = std::size_t{64} << stage;
    const std::size_t outputs = bottleneck ? 4 * width : width;
    for (int block = 0; block < blocks[stage]; ++block) {
      if (bottleneck) layers.push_back(normed(inputs, width, 1, side));
      if (stage > 0 && block == 0) side /= 2;  // the 3 × 3 convolution has the stride
      layers.push_back(normed(bottleneck ? width : inputs, width, 3, side));
      layers.push_back(normed(width, outputs, bottleneck ? 1 : 3, side));
      if (inputs != outputs) layers.push_back(normed(inputs, outputs, 1, side));
      inputs = outputs;
    }
  }
  layers.push_back(linear(inputs, 1000));
  return layers;
}

struct NamedModel {
  std::string_view name;
  int batch;
  Layers (*layers)();
};

constexpr NamedModel models[] = {
    {"cnn", 64,
     [] {
       return Layers{convolution(1, 20, 5, 24), convolution(20, 50, 5, 8), linear(800, 500),
                     linear(500, 10)};
     }},
    {"mlp", 16,
     [] {
       return Layers{linear(784, 4096), linear(4096, 4096), linear(4096, 1024), linear(1024, 10)};
     }},
    {"resnet9", 16,
     [] {
       return Layers{normed(3, 64, 3, 32),    normed(64, 128, 3, 32),  normed(128, 128, 3, 16),
                     normed(128, 128, 3, 16), normed(128, 256, 3, 16), normed(256, 512, 3, 8),
                     normed(512, 512, 3, 4),  normed(512, 512, 3, 4),  linear(512, 10)};
     }},
    {"resnet18", 32,
     [] {
       return resnet({2, 2, 2, 2}, false);
     }},
    {"resnet50", 32, [] {
       return resnet({3, 4, 6, 3}, true);
     }}};

constexpr detail::EnumNames<Shard::gradients> shards("none", "optimizer", "gradients");

struct NamedOptimizer {
  std::string_view name;
  int state_tensors;
};

constexpr NamedOptimizer optimizers[] = {{"sgd", 0},     {"momentum", 1}, {"rmsprop", 1},
                                         {"adagrad", 1}, {"adam", 2},     {"adamw", 2},
                                         {"amsgrad", 3}};

/// The entry with this name. Throws: InvalidArgument listing the names.
const auto& find_named(const auto& all, const char* option, std::string_view name,
                       std::string_view remedy = "") {
  for (const auto& one : all) {
    if (one.name == name) return one;
  }
  const auto names = detail::joined(all, ", ", [](const auto& one) { return one.name; });
  throw InvalidArgument(
      concat("plan: ", option, ": got '", name, "', expected one of ", names, remedy));
}

}  // namespace

std::size_t parameters(std::span<const Layer> layers) {
  std::size_t sum = 0;
  for (const auto& one : layers) sum += one.rows * one.columns + one.vectors;
  return sum;
}

double multiplications(std::span<const Layer> layers) {
  double sum = 0;
  for (const auto& one : layers) sum += static_cast<double>(one.rows * one.columns * one.positions);
  return sum;
}

Model find_model(std::string_view name) {
  const auto& found = find_named(models, "--model", name, "; others by --parameters and --step-ms");
  auto layers = found.layers();
  std::ranges::reverse(layers);
  return {.name = std::string(name), .layers = std::move(layers), .batch = found.batch};
}

Model model_of(std::size_t parameters) {
  constexpr std::size_t most = 1'000'000;
  Model model;
  for (std::size_t left = parameters; left > 0; left -= model.layers.back().columns) {
    model.layers.push_back({.rows = 1, .columns = std::min(left, most)});
  }
  return model;
}

Shard parse_shard(std::string_view text) { return shards.parse("plan: --shard:", text); }
int state_tensors(std::string_view optimizer) {
  return find_named(optimizers, "--optimizer", optimizer).state_tensors;
}

ModelMemory bytes_per_parameter(const Keeping& keeping) {
  const double ranks = static_cast<double>(keeping.nodes) * keeping.ranks_per_node;
  const double state = element_bytes * keeping.state_tensors;
  if (keeping.share_memory) {
    if (keeping.shard != Shard::none) {
      throw InvalidArgument(concat("plan: --share-memory: got --shard ", shards.of(keeping.shard),
                                   ", expected one of the two: shared state is one copy already"));
    }
    // .grad() is in the bucket or, where the ranks of one host read each other's buckets, beside
    // it.
    const double copies = keeping.nodes == 1 && ranks > 1 ? 2 : 1;
    return {.of_rank = element_bytes * copies, .shared = element_bytes + state};
  }
  const double gradients = element_bytes / (keeping.shard == Shard::gradients ? ranks : 1);
  return {.of_rank =
              element_bytes + gradients + state / (keeping.shard == Shard::none ? 1 : ranks)};
}

double largest_model(const Keeping& keeping, double host_bytes, double other_bytes) {
  const double free = host_bytes - keeping.ranks_per_node * other_bytes;
  return std::max(0.0, free / bytes_per_parameter(keeping).of_host(keeping.ranks_per_node));
}

}  // namespace lockstep::plan
