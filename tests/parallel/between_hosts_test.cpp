#include "tests/parallel/models.h"
#include "tests/sync/on_hosts.h"

// Training where hosts hold several ranks: threads that are said to be on two hosts.

namespace lockstep::testing {
namespace {

const std::vector<int> two_hosts{0, 0, 1, 1};

/// Its loss is linear, so that a gradient depends on rank and step only.
struct LinearLoss : torch::nn::Module {
  LinearLoss() {
    for (const std::int64_t rows : {20, 3, 30, 7, 16}) {
      parameters_.push_back(
          register_parameter("p" + std::to_string(parameters_.size()), at::zeros({rows, 11})));
    }
  }

  /// The third is for rank 1 alone, at every second step.
  static bool uses(std::size_t parameter, int rank, int step) {
    return parameter != 2 || (rank == 1 && step % 2 == 0);
  }
  at::Tensor slope(std::size_t parameter, int rank, int step) const {
    const auto& sizes = parameters_[parameter].sizes();
    const auto places = at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
    return at::sin(places * 0.37 + 5 * rank + 3 * step + static_cast<double>(parameter));
  }
  at::Tensor forward(int rank, int step) {
    auto loss = at::zeros({1});
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (uses(i, rank, step)) loss = loss + (parameters_[i] * slope(i, rank, step)).sum();
    return loss;
  }

  std::vector<at::Tensor> parameters_;
};

/// Copies of the parameters, which must be equal on all ranks. Ranks: all.
std::vector<at::Tensor> copies(const LinearLoss& model, const Group& group) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : model.parameters_) {
    EXPECT_TRUE(same_on_all_ranks(parameter, group)) << "parameter " << copies.size();
    copies.push_back(parameter.detach().clone());
  }
  return copies;
}

// Small buckets, so that there are several, one of them with a single parameter.
constexpr BucketCaps small_caps{.first = 1 << 10, .rest = 2 << 10};

TEST(TrainingBetweenHosts, LosesNoGradient) {
  constexpr int steps = 9;
  // Codes of the mean have no feedback: of at most 1, half a code is lost a step.
  constexpr float of_codes = steps * 0.5f / 127;
  const std::pair<const char*, float> allowed[] = {{"topk:0.1", 1e-4f},
                                                   {"threshold:0.6", 1e-4f},
                                                   {"power_sgd:rank=2", 1e-4f},
                                                   {"int8", of_codes}};
  for (const auto& entry : allowed) {
    const auto* text = entry.first;
    SCOPED_TRACE(text);
    std::vector<at::Tensor> trained;
    std::vector<State> states(two_hosts.size());
    spawn(4, [&](const Group& threads) {
      const auto group = on_hosts(threads, two_hosts);
      const auto rank = static_cast<std::size_t>(group.rank());
      auto model = std::make_shared<LinearLoss>();
      DistributedDataParallel ddp(model, group,
                                  {.buckets = small_caps, .strategy = parse_strategy(text)});
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1));
      for (int step = 0; step < steps; ++step) {
        sgd.zero_grad();
        ddp(group.rank(), step).backward();
        sgd.step();
      }
      auto parameters = copies(*model, group);
      if (rank == 0) trained = std::move(parameters);
      for (const auto& [name, tensor] : ddp.state()) states[rank].emplace(name, tensor.clone());
    });
    // The difference from the exact update equals the residuals that hosts have not sent.
    const LinearLoss loss;
    for (std::size_t i = 0; i < loss.parameters_.size(); ++i) {
      auto& missing = trained[i];
      for (int step = 0; step < steps; ++step) {
        for (int rank = 0; rank < 4; ++rank)
          if (LinearLoss::uses(i, rank, step)) missing.add_(loss.slope(i, rank, step) / 4);
      }
      int keepers = 0;
      for (const auto& state : states) {
        const auto found = state.find("p" + std::to_string(i) + ".residual");
        if (found == state.end()) continue;
        missing.sub_(found->second / 2);
        ++keepers;
      }
      EXPECT_EQ(keepers, 2) << "one rank of each host keeps it";
      EXPECT_LT(missing.abs().max().item<float>(), entry.second) << "parameter " << i;
    }
  }
}

TEST(TrainingBetweenHosts, CountsWhatTravelsBetweenHosts) {
  spawn(4, [](const Group& threads) {
    const auto group = on_hosts(threads, two_hosts);
    auto model = std::make_shared<LinearLoss>();
    DistributedDataParallel ddp(model, group,
                                {.buckets = small_caps, .strategy = parse_strategy("topk:0.1")});
    ddp(group.rank(), 0).backward();
    std::uint64_t sent = 0, stood_for = 0;
    for (const auto& row : group.statistics()) {
      if (row.bucket < 0) continue;
      EXPECT_EQ(row.collective, Collective::all_gather);
      sent += row.bytes;
      stood_for += row.dense_bytes;
    }
    EXPECT_GT(stood_for, 0U);
    EXPECT_LE(sent, stood_for / 4);
  });
}

TEST(TrainingBetweenHosts, JoinsTheHostsChanges) {
  const auto train = [](const Group& group, auto& trained, const auto& gradient) {
    auto model = std::make_shared<LinearLoss>();
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, *model, group, parse_strategy("adasum"));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      at::Tensor loss = at::zeros({1});
      for (std::size_t i = 0; i < model->parameters_.size(); ++i)
        loss = loss + (model->parameters_[i] * gradient(*model, i, step)).sum();
      optimizer.backward_and_update(loss);
    }
    auto parameters = copies(*model, group);
    if (group.rank() == 0) trained = std::move(parameters);
  };
  std::vector<at::Tensor> of_ranks, of_hosts;
  spawn(4, [&](const Group& threads) {
    train(on_hosts(threads, two_hosts), of_ranks,
          [&](const LinearLoss& model, std::size_t i, int step) {
            return model.slope(i, threads.rank(), step);
          });
  });
  spawn(2, [&](const Group& hosts) {
    train(hosts, of_hosts, [&](const LinearLoss& model, std::size_t i, int step) {
      const int first = 2 * hosts.rank();
      return (model.slope(i, first, step) + model.slope(i, first + 1, step)) / 2;
    });
  });
  ASSERT_EQ(of_ranks.size(), of_hosts.size());
  for (std::size_t i = 0; i < of_hosts.size(); ++i)
    EXPECT_TRUE(at::allclose(of_ranks[i], of_hosts[i], 1e-4, 1e-6)) << i;
}

}  // namespace
}  // namespace lockstep::testing
