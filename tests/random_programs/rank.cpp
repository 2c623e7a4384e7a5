#include "tests/random_programs/rank.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/text.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;

std::shared_ptr<Model> make_model(const Unit& unit, int width, std::uint64_t seed) {
  switch (unit.output) {
    case Output::tensor:
      return std::make_shared<Returning<Output::tensor>>(unit, width, seed);
    case Output::tuple:
      return std::make_shared<Returning<Output::tuple>>(unit, width, seed);
    case Output::list:
      return std::make_shared<Returning<Output::list>>(unit, width, seed);
    case Output::optional:
      return std::make_shared<Returning<Output::optional>>(unit, width, seed);
    case Output::map:
      return std::make_shared<Returning<Output::map>>(unit, width, seed);
    case Output::ordered_dict:
      return std::make_shared<Returning<Output::ordered_dict>>(unit, width, seed);
    case Output::structure:
      return std::make_shared<Returning<Output::structure>>(unit, width, seed);
    case Output::opaque:
      return std::make_shared<Returning<Output::opaque>>(unit, width, seed);
  }
  return nullptr;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Unit& unit, const Model& model) {
  using namespace torch::optim;
  auto parameters = model.unique_parameters();
  if (!unit.all_parameters) parameters.erase(parameters.begin());
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

Values values_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  const auto flat = tensor.detach().cpu().to(at::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  return std::vector<double>(data, data + flat.numel());
}

}  // namespace

Rank::Rank(const Program& program, int rank, at::Device device)
    : program_(program), rank_(rank), device_(device) {
  for (std::size_t i = 0; i < program.units.size(); ++i) {
    const auto seed = program.seed * 1000 + i * 100 + static_cast<std::uint64_t>(rank) * 20;
    auto model = make_model(program.units[i], program.width, seed);
    model->to(device);
    auto optimizer = make_optimizer(program.units[i], *model);
    holdings_.push_back({.model = std::move(model), .optimizer = std::move(optimizer)});
  }
}

at::Tensor Rank::input_of(std::uint64_t data, std::size_t path, at::ScalarType dtype) const {
  const auto seed = data * 64 + path * 8 + static_cast<std::uint64_t>(rank_);
  return random_values({2, program_.width}, seed, dtype).to(device_);
}

at::Tensor Rank::loss_of(const std::vector<int>& path, std::size_t number, const Backward& op,
                         const Forward& forward) {
  const auto dtype = (*this)[path.front()].model->dtype();
  auto y = input_of(op.data, number, dtype).requires_grad_();
  for (const int unit : path) {
    const auto& layers = op.layers[static_cast<std::size_t>(rank_)];
    y = forward(unit, y, layers[static_cast<std::size_t>(unit)]);
  }
  const auto factor = random_values(y.sizes(), op.data * 64 + number * 8 + 7, dtype).to(device_);
  const auto loss = (y * factor).mean() + 0.1 * y.square().mean();
  losses_[number] = values_of(loss);
  return loss;
}

void Rank::run(const Backward& op, const Forward& forward, const RunBackward& run_backward) {
  losses_.assign(op.paths.size(), std::nullopt);
  if (has(op.without_loss, rank_)) return;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < op.paths.size(); ++i) order.push_back(i);
  if (op.swapped == rank_) std::ranges::reverse(order);
  const auto differentiate = [&](const at::Tensor& loss) {
    if (op.twice) loss.backward({}, /*retain_graph=*/true);
    run_backward(loss);
  };
  at::Tensor sum;
  for (const auto number : order) {
    const auto loss = loss_of(op.paths[number], number, op, forward);
    if (op.separate) {
      differentiate(loss);
    } else {
      sum = sum.defined() ? sum + loss : loss;
    }
  }
  if (sum.defined()) differentiate(sum);
}

void Rank::run(const Evaluate& op, const Forward& forward) {
  const torch::AutoGradMode mode(op.with_graph);
  const auto x = input_of(op.data, 0, (*this)[op.unit].model->dtype());
  losses_.assign(1, values_of(forward(op.unit, x, ~0U)));
}

void Rank::run(const ZeroGrad& op) {
  if (op.by == ZeroGrad::By::module) {
    (*this)[op.unit].model->zero_grad(op.set_to_none);
  } else {
    (*this)[op.unit].optimizer->zero_grad(op.set_to_none);
  }
}

void Rank::run(const Clip& op) {
  torch::nn::utils::clip_grad_norm_((*this)[op.unit].model->unique_parameters(), op.norm);
}

void Rank::run(const SetGradient& op) {
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

void Rank::run(const Freeze& op) {
  const auto& model = (*this)[op.unit].model;
  auto parameter = model->unique_parameters()[static_cast<std::size_t>(op.parameter)];
  parameter.set_requires_grad(!op.frozen);
}

void Rank::run(const Save& op) {
  std::ostringstream out;
  torch::save(std::shared_ptr<torch::nn::Module>((*this)[op.unit].model), out);
  (*this)[op.unit].saved = out.str();
}

void Rank::run(const Load& op) {
  std::istringstream in((*this)[op.unit].saved);
  auto model = std::shared_ptr<torch::nn::Module>((*this)[op.unit].model);
  torch::load(model, in);
}

void Rank::run(const Convert& op) {
  const auto& model = (*this)[op.unit].model;
  model->to(model->dtype() == at::kDouble ? at::kFloat : at::kDouble);
  model->to(model->dtype());
}

std::vector<Values> Rank::observe() {
  auto all = std::exchange(losses_, {});
  for (const auto& [model, optimizer, saved] : holdings_) {
    for (const auto& parameter : model->unique_parameters()) {
      all.push_back(values_of(parameter));
      all.push_back(values_of(parameter.grad()));
    }
    if (model->buffer().defined()) all.push_back(values_of(model->buffer()));
  }
  return all;
}

std::vector<Item> Rank::items() const {
  using enum Item::Kind;
  std::vector<Item> items;
  const auto add = [&items](Item::Kind kind, std::size_t unit, std::size_t number) {
    items.push_back(
        {.kind = kind, .unit = static_cast<int>(unit), .number = static_cast<int>(number)});
  };
  for (std::size_t i = 0; i < losses_.size(); ++i) add(loss, 0, i);
  for (std::size_t unit = 0; unit < holdings_.size(); ++unit) {
    const auto& model = *holdings_[unit].model;
    for (std::size_t i = 0; i < model.unique_parameters().size(); ++i) {
      add(parameter, unit, i);
      add(gradient, unit, i);
    }
    if (model.buffer().defined()) add(buffer, unit, 0);
  }
  return items;
}

std::string to_text(const Item& item) {
  switch (item.kind) {
    case Item::Kind::loss:
      return concat("loss ", item.number);
    case Item::Kind::parameter:
      return concat("unit ", item.unit, ": parameter ", item.number);
    case Item::Kind::gradient:
      return concat("unit ", item.unit, ": gradient ", item.number);
    case Item::Kind::buffer:
      return concat("unit ", item.unit, ": buffer");
  }
  return "";
}

}  // namespace lockstep::random_programs
