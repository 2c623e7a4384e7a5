#include "tests/parallel/models.h"
#include "tests/sync/on_hosts.h"

// Training where hosts hold several ranks: threads that are said to be on two hosts.

namespace lockstep::testing {
namespace {

const std::vector<int> two_hosts{0, 0, 1, 1};

std::shared_ptr<Terms> make_zeros() {
  auto model = make_terms({{20, 11}, {3, 11}, {30, 11}, {7, 11}, {16, 11}});
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->p) parameter.zero_();
  return model;
}

/// The gradients of a rank in a step. The third is for rank 1 alone, at every second step.
std::vector<at::Tensor> slopes(const Terms& model, int rank, int step, bool all = false) {
  std::vector<at::Tensor> slopes;
  for (std::size_t i = 0; i < model.p.size(); ++i) {
    const auto places = at::arange(model.p[i].numel(), at::kFloat).view(model.p[i].sizes());
    const auto slope = at::sin(places * 0.37 + 5 * rank + 3 * step + static_cast<double>(i));
    slopes.push_back(all || i != 2 || (rank == 1 && step % 2 == 0) ? slope : at::Tensor());
  }
  return slopes;
}

/// Copies of the parameters, which must be equal on all ranks. Ranks: all.
std::vector<at::Tensor> equal_parameters(const Terms& model, const Group& group) {
  for (const auto& parameter : model.p) EXPECT_TRUE(same_on_all_ranks(parameter, group));
  return copies_of(model.p);
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
      const auto model = make_zeros();
      DistributedDataParallel ddp(model, group,
                                  {.buckets = small_caps, .strategy = parse_strategy(text)});
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1));
      for (int step = 0; step < steps; ++step) {
        sgd.zero_grad();
        ddp(slopes(*model, group.rank(), step)).backward();
        sgd.step();
      }
      auto parameters = equal_parameters(*model, group);
      if (rank == 0) trained = std::move(parameters);
      for (const auto& [name, tensor] : ddp.state()) states[rank].emplace(name, tensor.clone());
    });
    // The difference from the exact update equals the residuals that hosts have not sent.
    const auto model = make_zeros();
    for (std::size_t i = 0; i < trained.size(); ++i) {
      auto& missing = trained[i];
      for (int step = 0; step < steps; ++step) {
        for (int rank = 0; rank < 4; ++rank)
          if (const auto slope = slopes(*model, rank, step)[i]; slope.defined())
            missing.add_(slope / 4);
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
    const auto model = make_zeros();
    DistributedDataParallel ddp(model, group,
                                {.buckets = small_caps, .strategy = parse_strategy("topk:0.1")});
    ddp(slopes(*model, group.rank(), 0)).backward();
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
  const auto train = [](const Group& group, auto& trained, const auto& gradients) {
    const auto model = make_zeros();
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, *model, group, parse_strategy("adasum"));
    for (int step = 0; step < 3; ++step)
      optimizer.backward_and_update(model->forward(gradients(*model, step)));
    auto parameters = equal_parameters(*model, group);
    if (group.rank() == 0) trained = std::move(parameters);
  };
  std::vector<at::Tensor> of_ranks, of_hosts;
  spawn(4, [&](const Group& threads) {
    train(on_hosts(threads, two_hosts), of_ranks, [&](const Terms& model, int step) {
      return slopes(model, threads.rank(), step, /*all=*/true);
    });
  });
  spawn(2, [&](const Group& hosts) {
    train(hosts, of_hosts, [&](const Terms& model, int step) {
      auto mean = slopes(model, 2 * hosts.rank(), step, /*all=*/true);
      const auto others = slopes(model, 2 * hosts.rank() + 1, step, /*all=*/true);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (mean[i] + others[i]) / 2;
      return mean;
    });
  });
  ASSERT_EQ(of_ranks.size(), of_hosts.size());
  for (std::size_t i = 0; i < of_hosts.size(); ++i)
    EXPECT_TRUE(at::allclose(of_ranks[i], of_hosts[i], 1e-4, 1e-6)) << i;
}

}  // namespace
}  // namespace lockstep::testing
