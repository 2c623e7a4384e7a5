#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/random_programs/model.h"
#include "tests/random_programs/outcome.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// One of the values that a rank shows after an operation.
struct Item {
  enum class Kind { loss, parameter, gradient, buffer, kept_gradient } kind;
  int unit = 0;
  std::string name;
  Values values;
};

/// One rank's models and optimizers, and its operations without communication, by LibTorch. The
/// oracle has one for every rank, the interpreter has its own.
class Rank {
 public:
  struct Holding {
    std::shared_ptr<Model> model;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    std::string saved = {};             ///< by torch::save
    std::vector<at::Tensor> kept = {};  ///< handles of gradients, by parameter
  };
  using Forward = std::function<at::Tensor(int unit, const at::Tensor& x, Mask layers)>;
  using RunBackward = std::function<void(const at::Tensor& loss)>;
  /// The result of a collective on this rank.
  using Combine = std::function<at::Tensor(Collective collective, const at::Tensor& y)>;
  /// The parameters of an optimizer, each once.
  using ParametersOf = std::function<std::vector<at::Tensor>(const Model& model)>;

  /// device: of the models and their inputs.
  Rank(const Program& program, int rank, const ParametersOf& parameters_of,
       at::Device device = at::kCPU);

  Holding& operator[](int unit) { return holdings_[static_cast<std::size_t>(unit)]; }

  /// The operation's losses, by this forward, and the backwards of them.
  void run(const Backward& op, const Forward& forward, const RunBackward& run_backward,
           const Combine& combine);
  /// The same for one path, if its backward comes before other forwards.
  void run_path(std::size_t number, const Backward& op, const Forward& forward,
                const RunBackward& run_backward);
  /// The two parts of the loss of path 0: up to a collective, and after it.
  at::Tensor before_collective(std::size_t number, const Backward& op, const Forward& forward);
  at::Tensor after_collective(std::size_t number, const Backward& op, const Forward& forward,
                              at::Tensor y);
  void run(const Evaluate& op, const Forward& forward);
  void run(const ZeroGrad& op);
  void run(const Clip& op);
  void run(const SetGradient& op);
  void run(const Keep& op);
  void run(const Freeze& op);
  void run(const Save& op);
  void run(const Load& op);
  void run(const Convert& op);

  /// The model's own forward, whatever it returns.
  at::Tensor compute(int unit, const at::Tensor& x, Mask layers) {
    return (*this)[unit].model->compute(x, layers);
  }
  Forward own_forward() {
    return [this](int unit, const at::Tensor& x, Mask layers) { return compute(unit, x, layers); };
  }

  /// The observable values after an operation. Clears the losses.
  std::vector<Item> observe();

 private:
  at::Tensor apply(int unit, std::size_t number, const Backward& op, const Forward& forward,
                   const at::Tensor& x);
  at::Tensor input_of(std::uint64_t data, std::size_t path, at::ScalarType dtype) const;

  const Program& program_;
  int rank_;
  at::Device device_;
  std::vector<Holding> holdings_;
  std::vector<Values> losses_;
};

/// The backward of the sum of all ranks' losses, which a collective joins in one graph.
void run_in_one_graph(const Backward& op, const std::vector<std::unique_ptr<Rank>>& ranks);

}  // namespace lockstep::random_programs
