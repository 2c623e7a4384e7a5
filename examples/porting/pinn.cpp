// A physics-informed network solves the heat equation u_t = u_xx / 10 for x and t in [0, 1]. At
// t = 0, u is sin(pi x). At x = 0 and x = 1, it is 0. LBFGS evaluates the
// closure several times in a step.
#include <torch/torch.h>

#include <cstdint>
#include <iomanip>
#include <iostream>
#include <numbers>
#ifdef WITH_LOCKSTEP
#include <lockstep/lockstep.h>
#endif

namespace nn = torch::nn;
using std::numbers::pi;

constexpr std::int64_t all_inner = 240;
constexpr std::int64_t all_border = 90;
constexpr int steps = 15;

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
  }

  /// points: columns x and t.
  torch::Tensor forward(const torch::Tensor& points) {
    return last(torch::tanh(second(torch::tanh(first(points)))));
  }

  nn::Linear first{2, 20};
  nn::Linear second{20, 20};
  nn::Linear last{20, 1};
};
TORCH_MODULE(Net);

torch::Tensor gradient(const torch::Tensor& output, const torch::Tensor& input) {
  return torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0];
}

/// u_t - u_xx / 10 at the points.
torch::Tensor residual(Net& net, const torch::Tensor& points) {
  const auto slope = gradient(net(points), points);
  return slope.select(1, 1) - gradient(slope.select(1, 0), points).select(1, 0) / 10;
}

/// u, by a formula, where it is known: at the border. Also the solution inside.
torch::Tensor solution(const torch::Tensor& points) {
  return (torch::sin(pi * points.select(1, 0)) * torch::exp(-pi * pi / 10 * points.select(1, 1)))
      .unsqueeze(1);
}

/// Random points with t = 0, x = 0 or x = 1, a third each.
torch::Tensor border_points(std::int64_t count) {
  auto points = torch::rand({count, 2});
  const auto side = torch::arange(count) % 3;
  points.select(1, 1).masked_fill_(side == 0, 0);
  points.select(1, 0).masked_fill_(side == 1, 0).masked_fill_(side == 2, 1);
  return points;
}

int main() {
#ifdef WITH_LOCKSTEP
  const auto world = lockstep::init();
#endif
  torch::set_default_dtype(torch::scalarTypeToTypeMeta(torch::kDouble));
  torch::manual_seed(0);
  auto inner = torch::rand({all_inner, 2});
  auto border = border_points(all_border);
  Net net;
#ifdef WITH_LOCKSTEP
  inner = inner.tensor_split(world.size())[world.rank()];
  border = border.tensor_split(world.size())[world.rank()];
  lockstep::DistributedDataParallel ddp(net, world);
#endif
  inner = inner.detach().clone().requires_grad_();
  const auto known = solution(border);
  torch::optim::LBFGS lbfgs(
      net->parameters(),
      torch::optim::LBFGSOptions(1.0).max_iter(5).line_search_fn("strong_wolfe"));
  const auto closure = [&] {
    lbfgs.zero_grad();
    auto loss = residual(net, inner).pow(2).mean() + torch::mse_loss(net(border), known);
    loss.backward();
#ifdef WITH_LOCKSTEP
    loss = torch::tensor(world.mean(loss.item<double>()));
#endif
    return loss;
  };

  for (int step = 0; step < steps; ++step) {
    const auto loss = lbfgs.step(closure).item<double>();
#ifdef WITH_LOCKSTEP
    if (world.rank() != 0) continue;
#endif
    std::cout << "step " << step << " loss " << std::setprecision(9) << loss << std::endl;
  }

#ifdef WITH_LOCKSTEP
  if (world.rank() != 0) return 0;
#endif
  const torch::NoGradGuard no_grad;
  const auto points = torch::rand({1000, 2});
  std::cout << "largest error " << (net(points) - solution(points)).abs().max().item<double>()
            << std::endl;
}
