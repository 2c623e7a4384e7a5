#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::bench {

namespace nn = torch::nn;

/// A Sequential as a module whose forward is no template.
struct Layers : nn::Module {
  explicit Layers(nn::Sequential sequence) : layers(std::move(sequence)) {
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers;
};

/// x + block(x).
struct ResidualImpl : nn::Module {
  explicit ResidualImpl(nn::Sequential around) : block(std::move(around)) {
    register_module("block", block);
  }
  at::Tensor forward(const at::Tensor& x) { return x + block->forward(x); }
  nn::Sequential block;
};
TORCH_MODULE(Residual);

/// SINGA's CNN for MNIST, 0.43 million parameters.
inline nn::Sequential cnn() {
  return nn::Sequential(nn::Conv2d(1, 20, 5), nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(20, 50, 5),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(800, 500),
                        nn::ReLU(), nn::Linear(500, 10));
}

/// 784-4096-4096-1024-10, 24.2 million parameters: more of them than work.
inline nn::Sequential mlp() {
  return nn::Sequential(nn::Linear(784, 4096), nn::ReLU(), nn::Linear(4096, 4096), nn::ReLU(),
                        nn::Linear(4096, 1024), nn::ReLU(), nn::Linear(1024, 10));
}

/// A ResNet of nine layers for 32×32 images, 6.6 million parameters.
inline nn::Sequential resnet9() {
  const auto conv = [](std::int64_t in, std::int64_t out) {
    return std::make_shared<Layers>(
        nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false)),
                       nn::BatchNorm2d(out), nn::ReLU()));
  };
  const auto residual = [&](std::int64_t channels) {
    return Residual(nn::Sequential(conv(channels, channels), conv(channels, channels)));
  };
  return nn::Sequential(conv(3, 64), conv(64, 128), nn::MaxPool2d(2), residual(128), conv(128, 256),
                        nn::MaxPool2d(2), conv(256, 512), nn::MaxPool2d(2), residual(512),
                        nn::MaxPool2d(4), nn::Flatten(), nn::Linear(512, 10));
}

/// What is trained, and on what.
struct Work {
  std::function<nn::Sequential()> model;
  std::int64_t batch_size;
  std::vector<std::int64_t> sample;  ///< sizes of one input
};

/// By the name that command lines use.
inline const std::map<std::string, Work>& works() {
  static const std::map<std::string, Work> all = {
      {"cnn", {cnn, 64, {1, 28, 28}}},
      {"mlp", {mlp, 16, {784}}},
      {"resnet9", {resnet9, 16, {3, 32, 32}}},
  };
  return all;
}

}  // namespace lockstep::bench
