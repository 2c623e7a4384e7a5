#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/text.h"
#include "tests/random_programs/program.h"
#include "tests/random_programs/random.h"

namespace lockstep::random_programs {

/// Values from -1 to 1 that depend on the seed only.
inline at::Tensor random_values(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype) {
  Random random(seed);
  auto values = at::empty(sizes, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = random.real();
  return values.to(dtype);
}

/// The model of a unit.
class Model : public torch::nn::Module {
 public:
  /// Ranks start with different values.
  Model(const Unit& unit, int width, std::uint64_t seed)
      : layers_(unit.layers),
        dtype_(unit.single_precision ? at::kFloat : at::kDouble),
        seed_(seed),
        frozen_(unit.frozen) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto layer = std::make_shared<torch::nn::Module>("Layer");
      register_module(lockstep::detail::concat("layer", i), layer);
      switch (layers_[i]) {
        case Layer::linear:
          add(*layer, {width, width});
          add(*layer, {width});
          break;
        case Layer::repeated:
          register_module(lockstep::detail::concat("again", i), layer);
          [[fallthrough]];
        case Layer::scale:
        case Layer::norm:
          add(*layer, {width});
          break;
        case Layer::gain:
          add(*layer, {});
          break;
        case Layer::transposed:
          add(*layer, {width, width + 1}, /*transposed=*/true);
          break;
        case Layer::tied:
          add(*layer, {width, width});
          layer->register_parameter("again", parameters_.back(),
                                    parameters_.back().requires_grad());
          break;
        case Layer::two:
          add(*layer, {width, width + 1});
          add(*layer, {width + 1, width});
          break;
        case Layer::wide:
          add(*layer, {200});
          break;
        case Layer::seen:
          break;
      }
    }
    if (unit.buffers != Buffers::absent) {
      // Means and variances of columns.
      buffer_ = register_buffer("seen", random_values({2, width}, seed_++, dtype_).abs());
    }
  }

  /// y = x, then y + layer(y) for each of these layers. With none of them y depends on x only.
  at::Tensor compute(const at::Tensor& x, Mask layers) {
    const bool is_norm = std::ranges::find(layers_, Layer::norm) != layers_.end();
    if (buffer_.defined() && !is_norm && trains()) {
      const torch::NoGradGuard no_grad;
      buffer_.mul_(0.5).add_(torch::stack({x.mean(0), x.square().mean(0)}), 0.5);
    }
    auto y = x * 1;
    std::size_t first = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (has(layers, static_cast<int>(i))) y = y + apply(layers_[i], first, y);
      first += static_cast<std::size_t>(parameter_count(layers_[i]));
    }
    return y;
  }

  /// Each once, in the order of their numbers.
  const std::vector<at::Tensor>& unique_parameters() const { return parameters_; }
  /// Undefined where there is none.
  const at::Tensor& buffer() const { return buffer_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  void add(torch::nn::Module& layer, at::IntArrayRef sizes, bool transposed = false) {
    auto values = random_values(sizes, seed_++, dtype_);
    if (transposed) {
      const auto& sizes_of = values.sizes();
      values = at::empty_strided({sizes_of[1], sizes_of[0]}, {1, sizes_of[1]}, values.options())
                   .copy_(values.t());
    }
    const auto number = parameters_.size();
    parameters_.push_back(layer.register_parameter(lockstep::detail::concat("p", number), values,
                                                   static_cast<int>(number) != frozen_));
  }

  at::Tensor apply(Layer layer, std::size_t first, const at::Tensor& x) const {
    if (layer == Layer::seen) return torch::tanh(x) * buffer_[0];
    const auto& p = parameters_[first];
    switch (layer) {
      case Layer::linear:
        return torch::tanh(torch::linear(x, p, parameters_[first + 1]));
      case Layer::scale:
      case Layer::gain:
        return torch::tanh(x) * p;
      case Layer::transposed:
        return torch::tanh(torch::matmul(x, p.t()).sum(1, /*keepdim=*/true) * p.sum(0));
      case Layer::tied:
        return torch::matmul(torch::tanh(torch::matmul(x, p)), p);
      case Layer::two:
        return torch::matmul(torch::tanh(torch::matmul(x, p)), parameters_[first + 1]);
      case Layer::wide:
        return torch::tanh(x) * p.sin().mean();
      case Layer::repeated:
        return torch::tanh(x * p) * p;
      case Layer::norm:
        return torch::batch_norm(x, p, {}, buffer_[0], buffer_[1], trains(), /*momentum=*/0.5,
                                 /*eps=*/0.5, /*cudnn_enabled=*/false);
      case Layer::seen:
        break;
    }
    return {};
  }

  /// Whether a forward updates the buffer now.
  bool trains() const { return is_training() && at::GradMode::is_enabled(); }

  std::vector<Layer> layers_;
  at::ScalarType dtype_;
  std::uint64_t seed_;
  int frozen_;
  std::vector<at::Tensor> parameters_;
  at::Tensor buffer_;
};

struct Structure {
  at::Tensor y;
  int columns;
};

/// As users declare it for DistributedDataParallel.
void visit_tensors(const Structure& output, const auto& visit) { visit(output.y); }

struct Opaque {
  at::Tensor y;
};

/// The model with a forward that returns what a unit asks for.
template <Output output>
class Returning : public Model {
 public:
  using Model::Model;

  auto forward(const at::Tensor& x, Mask layers) {
    const auto y = compute(x, layers);
    if constexpr (output == Output::tensor) {
      return y;
    } else if constexpr (output == Output::tuple) {
      return std::tuple(y, y.detach());
    } else if constexpr (output == Output::list) {
      return std::vector<at::Tensor>{y.detach(), y};
    } else if constexpr (output == Output::optional) {
      return std::optional(y);
    } else if constexpr (output == Output::map) {
      return std::map<std::string, at::Tensor>{{"y", y}};
    } else if constexpr (output == Output::ordered_dict) {
      torch::OrderedDict<std::string, at::Tensor> dict;
      dict.insert("y", y);
      return dict;
    } else if constexpr (output == Output::opaque) {
      return Opaque{.y = y};
    } else {
      return Structure{.y = y, .columns = static_cast<int>(y.size(1))};
    }
  }
};

/// make.template operator()<output>() for this output.
template <Output output = Output::tensor>
auto for_output(Output wanted, const auto& make) {
  if constexpr (output != Output::opaque) {  // the last one
    constexpr auto next = static_cast<Output>(static_cast<int>(output) + 1);
    if (wanted != output) return for_output<next>(wanted, make);
  }
  return make.template operator()<output>();
}

inline at::Tensor tensor_in(const at::Tensor& y) { return y; }
inline at::Tensor tensor_in(const std::tuple<at::Tensor, at::Tensor>& y) { return std::get<0>(y); }
inline at::Tensor tensor_in(const std::vector<at::Tensor>& y) { return y[1]; }
inline at::Tensor tensor_in(const std::optional<at::Tensor>& y) { return *y; }
inline at::Tensor tensor_in(const std::map<std::string, at::Tensor>& y) { return y.at("y"); }
inline at::Tensor tensor_in(const torch::OrderedDict<std::string, at::Tensor>& y) { return y["y"]; }
inline at::Tensor tensor_in(const Structure& y) { return y.y; }
inline at::Tensor tensor_in(const Opaque& y) { return y.y; }

}  // namespace lockstep::random_programs
