#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::plan {

/// A layer's parameters, in the order of backward: a matrix, and vectors such as a bias. The matrix
/// of a convolution has a row for each output channel and a column for each weight of one output
/// channel.
struct Layer {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t vectors = 0;    ///< elements beside the matrix
  std::size_t positions = 1;  ///< at which the matrix is used for each sample

  std::size_t parameters() const { return rows * columns + vectors; }
  /// Multiplications of one sample's forward.
  double multiplications() const {
    return static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(positions);
  }
};

/// The properties of a model that decide how long a step takes.
struct Model {
  std::string name;                ///< empty where only the number of parameters is known
  std::vector<Layer> layers = {};  ///< the last layer first
  int batch = 1;                   ///< samples of a rank's step, if nothing else is said
  bool shapes_known = true;        ///< so that low-rank strategies can be reckoned with

  std::size_t parameters() const;
  /// Of one sample's forward and backward, two operations a multiplication, and backward twice
  /// forward's.
  double operations() const;
};

/// "cnn", "mlp", "resnet9", "resnet18" or "resnet50": the models of examples/ and bench/train, and
/// He et al., "Deep Residual Learning for Image Recognition", 2016.
/// Throws: InvalidArgument listing the names.
Model find_model(std::string_view name);

/// A model of which only the number of parameters is known: layers of a million, used once.
Model model_of(std::size_t parameters);

}  // namespace lockstep::plan
