#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/numeric/digest.h"

namespace lockstep::bench {

namespace nn = torch::nn;

/// Normal numbers that depend on the seed only.
inline at::Tensor random_numbers(at::IntArrayRef sizes, std::int64_t seed) {
  return at::empty(sizes).normal_(
      0, 1, at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed)));
}

/// Gives the parameters values that depend on their order only.
inline void set_parameters(nn::Module& model) {
  const torch::NoGradGuard no_grad;
  std::int64_t seed = 1;
  for (auto& parameter : model.parameters()) {
    parameter.copy_(random_numbers(parameter.sizes(), seed++) / 6);
  }
}

/// Of contiguous memory.
inline std::uint64_t digest(const at::Tensor& tensor) {
  return detail::digest({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

/// A Sequential as a module whose forward is no template.
struct Layers : nn::Module {
  explicit Layers(nn::Sequential sequence) : layers(std::move(sequence)) {
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers;
};

/// x + block(x), or beside(x) + block(x) where sizes differ.
struct ResidualImpl : nn::Module {
  explicit ResidualImpl(nn::Sequential around, nn::Sequential other = nullptr)
      : block(std::move(around)), beside(std::move(other)) {
    register_module("block", block);
    if (beside) register_module("beside", beside);
  }
  at::Tensor forward(const at::Tensor& x) {
    return (beside ? beside->forward(x) : x) + block->forward(x);
  }
  nn::Sequential block;
  nn::Sequential beside;
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

/// ResNet-50 for 224×224 images of 102 classes, 23.7 million parameters.
inline nn::Sequential resnet50() {
  const auto conv = [](std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
    return nn::Conv2d(
        nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  };
  nn::Sequential all(conv(3, 64, 7, 2), nn::BatchNorm2d(64), nn::ReLU(),
                     nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  std::int64_t in = 64;
  std::int64_t width = 64;
  for (const int depth : {3, 4, 6, 3}) {
    for (int i = 0; i < depth; ++i) {
      const std::int64_t stride = i == 0 && width > 64 ? 2 : 1;
      const std::int64_t out = 4 * width;
      const nn::Sequential block(conv(in, width, 1, 1), nn::BatchNorm2d(width), nn::ReLU(),
                                 conv(width, width, 3, stride), nn::BatchNorm2d(width), nn::ReLU(),
                                 conv(width, out, 1, 1), nn::BatchNorm2d(out));
      const nn::Sequential beside =
          i == 0 ? nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out))
                 : nn::Sequential(nullptr);
      all->push_back(Residual(block, beside));
      all->push_back(nn::ReLU());
      in = out;
    }
    width *= 2;
  }
  all->push_back(nn::AdaptiveAvgPool2d(1));
  all->push_back(nn::Flatten());
  all->push_back(nn::Linear(2048, 102));
  return all;
}

/// A linear layer with the operator of Python's. For inputs of three dimensions, nn::Linear adds
/// the bias by a kernel of its own.
struct LinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

/// A layer of a transformer, with the norms first.
struct BlockImpl : nn::Module {
  static constexpr std::int64_t width = 512;
  static constexpr std::int64_t heads = 8;

  BlockImpl() {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("proj", proj);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm1(x))
                           .reshape({x.size(0), x.size(1), 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4});
    const auto attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    const auto sum = x + proj(attended.transpose(1, 2).reshape_as(x));
    return sum + down(torch::gelu(up(norm2(sum))));
  }
  nn::LayerNorm norm1{nn::LayerNormOptions({width})}, norm2{nn::LayerNormOptions({width})};
  Linear qkv{width, 3 * width}, proj{width, width}, up{width, 4 * width}, down{4 * width, width};
};
TORCH_MODULE(Block);

/// A transformer of six layers, 18.9 million parameters, for sequences of 128 vectors.
inline nn::Sequential transformer() {
  nn::Sequential all(Linear(64, BlockImpl::width));
  for (int i = 0; i < 6; ++i) all->push_back(Block());
  all->push_back(nn::LayerNorm(nn::LayerNormOptions({BlockImpl::width})));
  all->push_back(nn::Functional([](const at::Tensor& x) { return x.mean(1); }));
  all->push_back(nn::Linear(BlockImpl::width, 10));
  return all;
}

/// The model and the data to train.
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
      {"resnet50", {resnet50, 8, {3, 224, 224}}},
      {"transformer", {transformer, 32, {128, 64}}},
  };
  return all;
}

}  // namespace lockstep::bench
