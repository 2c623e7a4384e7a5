#include "tests/random_programs/model.h"

#include <algorithm>

#include "core/text.h"
#include "tests/random_programs/random.h"

namespace lockstep::random_programs {

at::Tensor random_values(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype) {
  Random random(seed);
  auto values = at::empty(sizes, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = random.real();
  return values.to(dtype);
}

Model::Model(const Unit& unit, int width, std::uint64_t seed)
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
        layer->register_parameter("again", parameters_.back(), parameters_.back().requires_grad());
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

void Model::add(torch::nn::Module& layer, at::IntArrayRef sizes, bool transposed) {
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

at::Tensor Model::apply(Layer layer, std::size_t first, const at::Tensor& x) const {
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

at::Tensor Model::compute(const at::Tensor& x, Mask layers) {
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

}  // namespace lockstep::random_programs
