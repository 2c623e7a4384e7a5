#pragma once

#include <torch/torch.h>

#include <array>
#include <limits>

#include "core/text.h"

/// The models of reference.py, line by line. forward() takes the step, as a model may depend on it.
namespace lockstep::testing::parity {

namespace nn = torch::nn;
using lockstep::detail::concat;

inline nn::Conv2d convolution(int inputs, int outputs, int size, int stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int inputs, int outputs, int stride)
      : conv1(register_module("conv1", convolution(inputs, outputs, 3, stride))),
        bn1(register_module("bn1", nn::BatchNorm2d(outputs))),
        conv2(register_module("conv2", convolution(outputs, outputs, 3, 1))),
        bn2(register_module("bn2", nn::BatchNorm2d(outputs))) {
    if (stride == 1 && inputs == outputs) return;
    downsample = nn::Sequential(convolution(inputs, outputs, 1, stride), nn::BatchNorm2d(outputs));
    register_module("downsample", downsample);
  }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor shortcut = downsample.is_empty() ? x : downsample->forward(x);
    x = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(x + shortcut);
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct ResNet18 : nn::Module {
  explicit ResNet18(int /*rank*/) {
    int width = 16;
    conv1 = register_module("conv1", convolution(3, width, 7, 2));
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const int outputs = 16 << i;
      layers[i] = nn::Sequential(Block(width, outputs, i == 0 ? 1 : 2), Block(outputs, outputs, 1));
      register_module(concat("layer", i + 1), layers[i]);
      width = outputs;
    }
    register_module("fc", fc);
  }
  at::Tensor forward(at::Tensor x, int /*step*/) {
    x = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    return fc(x.mean({2, 3}));
  }
  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  std::array<nn::Sequential, 4> layers;
  nn::Linear fc{128, 10};
};

/// Two blocks that predict the next of 40 words; the embedding is the output layer too.
struct Transformer : nn::Module {
  struct Layers {
    nn::LayerNorm norm1{nn::LayerNormOptions({32})};
    nn::Linear qkv{32, 96};
    nn::Linear proj{32, 32};
    nn::LayerNorm norm2{nn::LayerNormOptions({32})};
    nn::Linear up{32, 128};
    nn::Linear down{128, 32};
  };

  explicit Transformer(int /*rank*/) {
    register_module("embedding", embedding);
    register_module("place", place);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      register_module(concat("norm1_", i), blocks[i].norm1);
      register_module(concat("qkv_", i), blocks[i].qkv);
      register_module(concat("proj_", i), blocks[i].proj);
      register_module(concat("norm2_", i), blocks[i].norm2);
      register_module(concat("up_", i), blocks[i].up);
      register_module(concat("down_", i), blocks[i].down);
    }
  }
  at::Tensor forward(const at::Tensor& words, int /*step*/) {
    at::Tensor x = embedding(words) + place->weight;
    const at::Tensor hidden =
        torch::full({12, 12}, -std::numeric_limits<float>::infinity(), x.options()).triu(1);
    for (auto& [norm1, qkv, proj, norm2, up, down] : blocks) {
      const auto parts = qkv(norm1(x)).reshape({-1, 12, 3, 4, 8}).permute({2, 0, 3, 1, 4});
      const at::Tensor query = parts[0], key = parts[1], value = parts[2];
      const at::Tensor weights =
          torch::softmax(query.matmul(key.transpose(2, 3)) / std::sqrt(8.0) + hidden, 3);
      x = x + proj(weights.matmul(value).transpose(1, 2).reshape({-1, 12, 32}));
      x = x + down(torch::gelu(up(norm2(x))));
    }
    return nn::functional::linear(x, embedding->weight).reshape({-1, 40});
  }
  nn::Embedding embedding{40, 32}, place{12, 32};
  std::array<Layers, 2> blocks;
};

/// Each rank takes another one of three branches at each step. With two ranks, no rank takes the
/// third.
struct Branches : nn::Module {
  explicit Branches(int rank_of_model) : rank(rank_of_model) {
    register_module("inner", inner);
    for (std::size_t i = 0; i < branches.size(); ++i)
      branches[i] = register_module(concat("branch", i), nn::Linear(24, 24));
    register_module("outer", outer);
  }
  at::Tensor forward(const at::Tensor& x, int step) {
    auto& branch = branches[static_cast<std::size_t>(step + rank) % 3];
    return outer(torch::tanh(branch(torch::tanh(inner(x)))));
  }
  int rank;
  nn::Linear inner{16, 24};
  std::array<nn::Linear, 3> branches{nullptr, nullptr, nullptr};
  nn::Linear outer{24, 10};
};

}  // namespace lockstep::testing::parity
