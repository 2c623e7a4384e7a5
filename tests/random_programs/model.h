#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// Values from -1 to 1 that depend on the seed only.
at::Tensor random_values(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype);

/// The model of a unit.
class Model : public torch::nn::Module {
 public:
  /// Ranks start with different values.
  Model(const Unit& unit, int width, std::uint64_t seed);

  /// y = x, then y + layer(y) for each of these layers. With none of them y depends on x only.
  at::Tensor compute(const at::Tensor& x, Mask layers);

  /// Each once, in the order of their numbers.
  const std::vector<at::Tensor>& unique_parameters() const { return parameters_; }
  /// Undefined where there is none.
  const at::Tensor& buffer() const { return buffer_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  void add(torch::nn::Module& layer, at::IntArrayRef sizes, bool transposed = false);
  at::Tensor apply(Layer layer, std::size_t first, const at::Tensor& x) const;
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
