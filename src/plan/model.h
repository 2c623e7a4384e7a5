#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

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

  std::size_t parameters() const { return rows * columns + vectors; }
  /// Multiplications of the forward of one sample.
  double multiplications() const {
    return static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(positions);
  }
};

/// The properties of a model that determine the time of a step.
struct Model {
  std::string name;                ///< empty if only the number of parameters is known
  std::vector<Layer> layers = {};  ///< in the order of backward: the last layer first
  int batch = 1;                   ///< default of samples per rank and step
  bool shapes_known =
      true;  ///< whether rows and columns are those of the parameters, as low-rank strategies need

  std::size_t parameters() const;
  /// Floating-point operations of one sample's forward and backward: two per multiplication;
  /// backward has twice those of forward.
  double operations() const;
};

/// "cnn", "mlp", "resnet9", "resnet18" or "resnet50": the models of examples/ and bench/train, and
/// He et al., "Deep Residual Learning for Image Recognition", 2016.
/// Throws: InvalidArgument listing the names.
Model find_model(std::string_view name);

/// A model of which only the number of parameters is known: layers of a million parameters, each
/// used once per sample.
Model model_of(std::size_t parameters);

}  // namespace lockstep::plan
