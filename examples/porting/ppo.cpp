// Proximal policy optimisation: an agent learns to balance a pole on a cart. With any argument, the
// program computes in float64.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <utility>
#include <vector>
#ifdef WITH_LOCKSTEP
#include <lockstep/lockstep.h>
#endif

namespace nn = torch::nn;

constexpr std::int64_t all_carts = 12;
constexpr std::int64_t horizon = 32;   // steps of each cart in an iteration
constexpr std::int64_t minibatch = 8;  // of these steps, for all carts
constexpr int iterations = 40;
constexpr int epochs = 4;
constexpr double discount = 0.98;
constexpr double lambda = 0.95;
constexpr double clip = 0.2;
constexpr double most_divergence = 0.02;

/// Carts with a pole each. The columns of the state: place, speed, angle, angular speed.
struct CartPoles {
  explicit CartPoles(const torch::Tensor& places) : state(places.clone()) {}

  /// Pushes each cart left (0) or right (1). A cart whose pole falls begins at its new place.
  /// Returns 1 for each pole that fell, else 0.
  torch::Tensor step(const torch::Tensor& actions, const torch::Tensor& new_places) {
    const auto columns = state.unbind(1);
    const auto cosine = columns[2].cos();
    const auto sine = columns[2].sin();
    const auto push = (actions * 20 - 10 + 0.05 * columns[3].pow(2) * sine) / 1.1;
    const auto turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine.pow(2) / 1.1));
    const auto acceleration = push - 0.05 * turn * cosine / 1.1;
    state = state + 0.02 * torch::stack({columns[1], acceleration, columns[3], turn}, 1);
    const auto fell = (state.select(1, 0).abs() > 2.4).logical_or(state.select(1, 2).abs() > 0.21);
    state = torch::where(fell.unsqueeze(1), new_places, state);
    return torch::where(fell, 1.0, 0.0);
  }

  torch::Tensor state;
};

struct AgentImpl : nn::Module {
  AgentImpl() {
    register_module("body", body);
    register_module("actor", actor);
    register_module("critic", critic);
  }

  /// The logit of a push to the right, and the value of the state.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& state) {
    const auto x = torch::tanh(body(state));
    return {actor(x).squeeze(-1), critic(x).squeeze(-1)};
  }

  nn::Linear body{4, 32};
  nn::Linear actor{32, 1};
  nn::Linear critic{32, 1};
};
TORCH_MODULE(Agent);

/// The logarithm of the probability of an action.
torch::Tensor log_probability(const torch::Tensor& logit, const torch::Tensor& action) {
  return torch::log_sigmoid(logit * (2 * action - 1));
}

int main(int argc, char**) {
  if (argc > 1) torch::set_default_dtype(torch::scalarTypeToTypeMeta(torch::kDouble));
#ifdef WITH_LOCKSTEP
  const auto world = lockstep::init();
#endif
  /// Random numbers, a row for each cart.
  const auto random = [&](std::int64_t columns) {
    auto rows = torch::rand({all_carts, columns});
#ifdef WITH_LOCKSTEP
    rows = rows.tensor_split(world.size())[world.rank()];
#endif
    return rows;
  };
  torch::manual_seed(0);
  Agent agent;
  torch::optim::Adam adam(agent->parameters(), 5e-3);
#ifdef WITH_LOCKSTEP
  lockstep::DistributedDataParallel ddp(agent, world);
#endif
  CartPoles carts(random(4) * 0.1 - 0.05);

  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::vector<torch::Tensor> state, action, fell, value;
    {
      const torch::NoGradGuard no_grad;
      for (std::int64_t t = 0; t < horizon; ++t) {
        state.push_back(carts.state);
        const auto output = agent(carts.state);
        value.push_back(output.second);
        action.push_back(torch::where(random(1).squeeze(1) < output.first.sigmoid(), 1.0, 0.0));
        fell.push_back(carts.step(action.back(), random(4) * 0.1 - 0.05));
      }
      value.push_back(agent(carts.state).second);
    }
    // Generalised advantage estimation. The reward is -1 for a fallen pole.
    std::vector<torch::Tensor> estimate(horizon);
    auto sum = torch::zeros_like(value[0]);
    for (std::int64_t t = horizon - 1; t >= 0; --t) {
      const auto next = (1 - fell[t]) * discount;
      sum = -fell[t] + next * value[t + 1] - value[t] + next * lambda * sum;
      estimate[t] = sum;
    }
    const auto states = torch::stack(state);  // step, cart, column
    const auto actions = torch::stack(action);
    auto advantages = torch::stack(estimate);
    value.pop_back();
    const auto returns = advantages + torch::stack(value);
    auto mean = advantages.mean().item<double>();
#ifdef WITH_LOCKSTEP
    mean = world.mean(mean);
#endif
    auto variance = (advantages - mean).pow(2).mean().item<double>();
#ifdef WITH_LOCKSTEP
    variance = world.mean(variance);
#endif
    advantages = (advantages - mean) / (std::sqrt(variance) + 1e-8);
    const auto before = log_probability(agent(states).first, actions).detach();

    double loss_of_last = 0;
    double divergence = 0;
    int epoch = 0;
    for (; epoch < epochs && divergence < most_divergence; ++epoch) {
      for (const auto& rows : torch::randperm(horizon).split(minibatch)) {
        const auto [logit, estimated] = agent(states.index({rows}));
        const auto change = log_probability(logit, actions.index({rows})) - before.index({rows});
        const auto ratio = change.exp();
        const auto gain = advantages.index({rows});
        const auto of_actor =
            -torch::min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean();
        const auto loss = of_actor + 0.5 * torch::mse_loss(estimated, returns.index({rows}));
        adam.zero_grad();
        loss.backward();
        nn::utils::clip_grad_norm_(agent->parameters(), 0.5);
        adam.step();
        loss_of_last = loss.item<double>();
        divergence = (ratio - 1 - change).mean().item<double>();
      }
#ifdef WITH_LOCKSTEP
      divergence = world.mean(divergence);
#endif
    }
    auto falls = torch::stack(fell).mean().item<double>();
#ifdef WITH_LOCKSTEP
    falls = world.mean(falls);
    loss_of_last = world.mean(loss_of_last);
    if (world.rank() != 0) continue;
#endif
    std::cout << "iteration " << iteration << std::setprecision(9) << " loss " << loss_of_last
              << " falls " << falls << " epochs " << epoch << std::endl;
  }
}
