#include "plan/model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::plan {
namespace {

/// A fully connected layer with bias.
Layer linear(std::size_t inputs, std::size_t outputs) {
  return {.rows = outputs, .columns = inputs, .vectors = outputs};
}

/// A square convolution whose output has side × side positions.
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

std::vector<Layer> cnn() {
  return {convolution(1, 20, 5, 24), convolution(20, 50, 5, 8), linear(800, 500), linear(500, 10)};
}

std::vector<Layer> mlp() {
  return {linear(784, 4096), linear(4096, 4096), linear(4096, 1024), linear(1024, 10)};
}

std::vector<Layer> resnet9() {
  return {normed(3, 64, 3, 32),    normed(64, 128, 3, 32),  normed(128, 128, 3, 16),
          normed(128, 128, 3, 16), normed(128, 256, 3, 16), normed(256, 512, 3, 8),
          normed(512, 512, 3, 4),  normed(512, 512, 3, 4),  linear(512, 10)};
}

/// A ResNet for 224 × 224 images: four stages with these numbers of blocks. A bottleneck block has
/// three convolutions, the last with four times the channels.
std::vector<Layer> resnet(const std::array<int, 4>& blocks, bool bottleneck) {
  std::vector<Layer> layers{normed(3, 64, 7, 112)};
  std::size_t inputs = 64;
  std::size_t side = 56;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::size_t width = std::size_t{64} << stage;
    const std::size_t outputs = bottleneck ? 4 * width : width;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::size_t before = side;  // the 3 × 3 convolution has the stride
      if (stage > 0 && block == 0) side /= 2;
      if (bottleneck) {
        layers.push_back(normed(inputs, width, 1, before));
        layers.push_back(normed(width, width, 3, side));
        layers.push_back(normed(width, outputs, 1, side));
      } else {
        layers.push_back(normed(inputs, width, 3, side));
        layers.push_back(normed(width, width, 3, side));
      }
      if (inputs != outputs) layers.push_back(normed(inputs, outputs, 1, side));
      inputs = outputs;
    }
  }
  layers.push_back(linear(inputs, 1000));
  return layers;
}

std::vector<Layer> resnet18() { return resnet({2, 2, 2, 2}, false); }
std::vector<Layer> resnet50() { return resnet({3, 4, 6, 3}, true); }

struct NamedModel {
  std::string_view name;
  std::vector<Layer> (*layers)();
  int batch;
};

constexpr NamedModel models[] = {{"cnn", cnn, 64},
                                 {"mlp", mlp, 16},
                                 {"resnet9", resnet9, 16},
                                 {"resnet18", resnet18, 32},
                                 {"resnet50", resnet50, 32}};

}  // namespace

std::size_t Model::parameters() const {
  std::size_t sum = 0;
  for (const auto& layer : layers) sum += layer.parameters();
  return sum;
}

double Model::operations() const {
  double sum = 0;
  for (const auto& layer : layers) sum += layer.multiplications();
  return 3 * 2 * sum;
}

Model find_model(std::string_view name) {
  std::string names;
  for (const auto& model : models) {
    if (name == model.name) {
      auto layers = model.layers();
      std::ranges::reverse(layers);
      return {.name = std::string(name), .layers = std::move(layers), .batch = model.batch};
    }
    names += detail::concat(names.empty() ? "" : ", ", model.name);
  }
  throw InvalidArgument(detail::concat("plan: got model '", name, "', expected one of ", names,
                                       "; others by --parameters and --step-ms"));
}

Model model_of(std::size_t parameters) {
  constexpr std::size_t side = 1000;
  Model model{.name = {}, .shapes_known = false};
  for (std::size_t left = parameters; left > 0;) {
    const std::size_t taken = std::min(left, side * side);
    model.layers.push_back({.rows = 1, .columns = taken});
    left -= taken;
  }
  return model;
}

}  // namespace lockstep::plan
