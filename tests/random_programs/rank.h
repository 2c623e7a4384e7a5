#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "tests/random_programs/model.h"
#include "tests/random_programs/outcome.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

inline std::shared_ptr<Model> make_model(const Unit& unit, int width, std::uint64_t seed) {
  return for_output(unit.output, [&]<Output output>() -> std::shared_ptr<Model> {
    return std::make_shared<Returning<output>>(unit, width, seed);
  });
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Unit& unit, const Model& model,
                                                               std::vector<at::Tensor> parameters) {
  using namespace torch::optim;
  const auto& first = model.unique_parameters()[0];
  if (!unit.all_parameters) std::erase_if(parameters, [&](auto& p) { return p.is_same(first); });
  switch (unit.updates) {
    case Updates::sgd:
      return std::make_unique<SGD>(parameters, SGDOptions(0.1));
    case Updates::momentum:
      return std::make_unique<SGD>(parameters, SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
    case Updates::adam:
      // A large epsilon: the step is a smooth function of the gradient, down to rounding.
      return std::make_unique<Adam>(parameters, AdamOptions(0.02).eps(1e-2));
  }
  return nullptr;
}

inline Values values_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  const auto flat = tensor.detach().cpu().to(at::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  return std::vector<double>(data, data + flat.numel());
}

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
       at::Device device = at::kCPU)
      : program_(program), rank_(rank), device_(device) {
    for (std::size_t i = 0; i < program.units.size(); ++i) {
      const auto seed = program.seed * 1000 + i * 100 + static_cast<std::uint64_t>(rank) * 20;
      auto model = make_model(program.units[i], program.width, seed);
      model->to(device);
      auto optimizer = make_optimizer(program.units[i], *model, parameters_of(*model));
      holdings_.push_back({.model = std::move(model), .optimizer = std::move(optimizer)});
    }
  }

  Holding& operator[](int unit) { return holdings_[static_cast<std::size_t>(unit)]; }

  /// The operation's losses, by this forward, and the backwards of them.
  void run(const Backward& op, const Forward& forward, const RunBackward& run_backward,
           const Combine& combine) {
    losses_.resize(op.paths.size());
    if (has(op.without_loss, rank_)) return;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < op.paths.size(); ++i) order.push_back(i);
    if (op.swapped == rank_) std::ranges::reverse(order);
    if (op.separate && !op.forwards_first) {
      for (const auto number : order) run_path(number, op, forward, run_backward);
      return;
    }
    std::vector<at::Tensor> losses;
    for (const auto number : order) {
      auto y = before_collective(number, op, forward);
      if (op.collective != Collective::none) y = combine(op.collective, y);
      const auto loss = after_collective(number, op, forward, y);
      if (op.separate || losses.empty()) {
        losses.push_back(loss);
      } else {
        losses[0] = losses[0] + loss;
      }
    }
    if (op.reversed) std::ranges::reverse(losses);
    if (op.twice) {
      for (const auto& loss : losses) loss.backward({}, /*retain_graph=*/true);
    }
    for (auto& loss : losses) run_backward(std::exchange(loss, {}));
  }

  /// The same for one path, if its backward comes before other forwards.
  void run_path(std::size_t number, const Backward& op, const Forward& forward,
                const RunBackward& run_backward) {
    losses_.resize(op.paths.size());
    if (has(op.without_loss, rank_)) return;
    const auto loss = after_collective(number, op, forward, before_collective(number, op, forward));
    if (op.twice) loss.backward({}, /*retain_graph=*/true);
    run_backward(loss);
  }

  /// The two parts of the loss of path 0: up to a collective, and after it.
  at::Tensor before_collective(std::size_t number, const Backward& op, const Forward& forward) {
    const int unit = op.paths[number].front();
    const auto dtype = (*this)[unit].model->dtype();
    const auto y =
        apply(unit, number, op, forward, input_of(op.data, number, dtype).requires_grad_());
    if (op.collective != Collective::reduce_scatter) return y;
    const auto all = y.repeat({program_.ranks, 1});
    const auto seed = op.data * 64 + 32 + static_cast<std::uint64_t>(rank_);
    return all * random_values(all.sizes(), seed, dtype).to(device_);
  }

  at::Tensor after_collective(std::size_t number, const Backward& op, const Forward& forward,
                              at::Tensor y) {
    const auto& path = op.paths[number];
    for (std::size_t i = 1; i < path.size(); ++i) y = apply(path[i], number, op, forward, y);
    const auto seed = op.data * 64 + number * 8 + 7;
    const auto factor = random_values(y.sizes(), seed, y.scalar_type()).to(device_);
    const auto loss = (y * factor).mean() + 0.1 * y.square().mean();
    losses_.resize(op.paths.size());
    losses_[number] = values_of(loss);
    return loss;
  }

  void run(const Evaluate& op, const Forward& forward) {
    const torch::AutoGradMode mode(op.with_graph);
    const auto x = input_of(op.data, 0, (*this)[op.unit].model->dtype());
    losses_.assign(1, values_of(forward(op.unit, x, ~0U)));
  }

  /// The optimizer's step.
  void step(int unit) {
    (*this)[unit].optimizer->step();
    // The step discards parts of gradients.
    if (program_.units[static_cast<std::size_t>(unit)].in_parts)
      (*this)[unit].optimizer->zero_grad();
  }

  void run(const ZeroGrad& op) {
    if (op.by == ZeroGrad::By::module) {
      (*this)[op.unit].model->zero_grad(op.set_to_none);
    } else {
      (*this)[op.unit].optimizer->zero_grad(op.set_to_none);
    }
  }

  void run(const Clip& op) {
    torch::nn::utils::clip_grad_norm_((*this)[op.unit].model->unique_parameters(), op.norm);
  }

  void run(const SetGradient& op) {
    if (!has(op.ranks, rank_)) return;
    const auto& model = (*this)[op.unit].model;
    std::vector<at::Tensor> parameters;
    for (std::size_t i = 0; i < model->unique_parameters().size(); ++i) {
      if (has(op.parameters, static_cast<int>(i)))
        parameters.push_back(model->unique_parameters()[i]);
    }
    std::vector<at::Tensor> gradients;
    if (op.how == SetGradient::How::compute) {
      const auto y = model->compute(input_of(op.data, 0, model->dtype()), ~0U);
      gradients = torch::autograd::grad({y.square().mean()}, parameters);
    } else {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto seed = op.data * 64 + i * 8 + static_cast<std::uint64_t>(rank_);
        gradients.push_back(random_values(parameters[i].sizes(), seed, model->dtype()).to(device_));
        if (op.how == SetGradient::How::poke) {
          auto elements = gradients.back().view(-1);
          const auto kept = static_cast<std::int64_t>(op.data) % elements.numel();
          const auto value = elements[kept].item<double>();
          elements.zero_();
          elements[kept] = value;
        }
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& gradient = parameters[i].mutable_grad();
      if (op.how == SetGradient::How::assign || op.how == SetGradient::How::compute) {
        // No view, which Optimizer::zero_grad(false) could not detach.
        gradient = at::empty_like(parameters[i]).copy_(gradients[i]).detach();
      } else if (gradient.defined()) {
        gradient.add_(gradients[i]);
      }
    }
  }

  void run(const Keep& op) {
    auto& holding = (*this)[op.unit];
    const auto& parameters = holding.model->unique_parameters();
    holding.kept.assign(parameters.size(), {});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& gradient = parameters[i].grad();
      if (!has(op.parameters, static_cast<int>(i)) || !gradient.defined()) continue;
      holding.kept[i] = op.how == Keep::How::handle     ? gradient
                        : op.how == Keep::How::detached ? gradient.detach()
                                                        : gradient.view_as(gradient);
    }
  }

  void run(const Freeze& op) {
    const auto& model = (*this)[op.unit].model;
    auto parameter = model->unique_parameters()[static_cast<std::size_t>(op.parameter)];
    parameter.set_requires_grad(!op.frozen);
  }

  void run(const Save& op) {
    std::ostringstream out;
    torch::save(std::shared_ptr<torch::nn::Module>((*this)[op.unit].model), out);
    (*this)[op.unit].saved = out.str();
  }

  void run(const Load& op) {
    std::istringstream in((*this)[op.unit].saved);
    auto model = std::shared_ptr<torch::nn::Module>((*this)[op.unit].model);
    torch::load(model, in);
  }

  void run(const Convert& op) {
    const auto& model = (*this)[op.unit].model;
    model->to(model->dtype() == at::kDouble ? at::kFloat : at::kDouble);
    model->to(model->dtype());
  }

  /// The model's own forward, whatever it returns.
  at::Tensor compute(int unit, const at::Tensor& x, Mask layers) {
    return (*this)[unit].model->compute(x, layers);
  }

  Forward own_forward() {
    return [this](int unit, const at::Tensor& x, Mask layers) { return compute(unit, x, layers); };
  }

  /// The observable values after an operation. Clears the losses.
  std::vector<Item> observe() {
    using enum Item::Kind;
    std::vector<Item> items;
    for (std::size_t i = 0; i < losses_.size(); ++i) {
      items.push_back(
          {.kind = loss, .name = lockstep::detail::concat("loss ", i), .values = losses_[i]});
    }
    losses_.clear();
    for (std::size_t unit = 0; unit < holdings_.size(); ++unit) {
      const auto add = [&](Item::Kind kind, const std::string& name, const at::Tensor& tensor) {
        items.push_back({.kind = kind,
                         .unit = static_cast<int>(unit),
                         .name = lockstep::detail::concat("unit ", unit, ": ", name),
                         .values = values_of(tensor)});
      };
      const auto& holding = holdings_[unit];
      const auto& parameters = holding.model->unique_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        add(parameter, lockstep::detail::concat("parameter ", i), parameters[i]);
        add(gradient, lockstep::detail::concat("gradient ", i), parameters[i].grad());
      }
      if (holding.model->buffer().defined()) add(buffer, "buffer", holding.model->buffer());
      for (std::size_t i = 0; i < holding.kept.size(); ++i) {
        add(kept_gradient, lockstep::detail::concat("kept gradient ", i), holding.kept[i]);
      }
    }
    return items;
  }

 private:
  at::Tensor apply(int unit, std::size_t number, const Backward& op, const Forward& forward,
                   const at::Tensor& x) {
    const auto& layers = op.layers[static_cast<std::size_t>(rank_)];
    auto& model = *(*this)[unit].model;
    model.train(!has(op.evaluated, static_cast<int>(number)));
    auto y = forward(unit, x, layers[static_cast<std::size_t>(unit)]);
    model.train();
    return y;
  }

  at::Tensor input_of(std::uint64_t data, std::size_t path, at::ScalarType dtype) const {
    const auto seed = data * 64 + path * 8 + static_cast<std::uint64_t>(rank_);
    return random_values({2, program_.width}, seed, dtype).to(device_);
  }

  const Program& program_;
  int rank_;
  at::Device device_;
  std::vector<Holding> holdings_;
  std::vector<Values> losses_;
};

/// A rank's result of a collective over the outputs of all ranks.
inline at::Tensor combined(Collective collective, const std::vector<at::Tensor>& outputs,
                           std::size_t rank) {
  const auto count = static_cast<std::int64_t>(outputs.size());
  switch (collective) {
    case Collective::none:
      return outputs[rank];
    case Collective::all_reduce:
      return torch::stack(outputs).sum(0);
    case Collective::mean:
      return torch::stack(outputs).mean(0);
    case Collective::all_gather:
      return torch::cat(outputs);
    case Collective::reduce_scatter:
      return torch::stack(outputs).sum(0).chunk(count)[rank];
    case Collective::broadcast:
      return outputs.back() + 0 * outputs[rank];
  }
  return {};
}

/// The backward of the sum of all ranks' losses, which a collective joins in one graph.
inline void run_in_one_graph(const Backward& op, const std::vector<std::unique_ptr<Rank>>& ranks) {
  std::vector<at::Tensor> outputs;
  for (auto& rank : ranks) {
    outputs.push_back(rank->before_collective(0, op, rank->own_forward()));
  }
  std::vector<at::Tensor> losses;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    losses.push_back(ranks[rank]->after_collective(0, op, ranks[rank]->own_forward(),
                                                   combined(op.collective, outputs, rank)));
  }
  const auto sum = torch::stack(losses).sum();
  if (op.twice) sum.backward({}, /*retain_graph=*/true);
  sum.backward();
}

}  // namespace lockstep::random_programs
