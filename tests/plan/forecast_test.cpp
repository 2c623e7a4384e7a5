// Everything expected here is worked out by hand.
#include "plan/forecast.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::testing {
namespace {

using plan::Keeping;
using plan::Layer;
using plan::Model;
using plan::Setting;

/// Nothing costs anything but bytes between hosts.
Costs only_network(double seconds_per_byte) {
  return {.synchronization = 0,
          .synchronization_rank = 0,
          .local_message = 0,
          .remote_message = 0,
          .message = 0,
          .sent_byte = seconds_per_byte,
          .moved_byte = 0};
}

/// Two layers, each enough for the first bucket and half of the work.
Model two_layers() {
  const Layer layer{.rows = 600, .columns = 500};
  return {.name = "two", .layers = {layer, layer}};
}

/// They on two hosts, whose work takes 3 s and the exchange of each bucket 0.6 s: 2(H−1)/H·S is
/// 1200000 bytes.
Setting two_hosts(Shard shard = Shard::none) {
  return {.model = two_layers(),
          .keeping = {.shard = shard, .nodes = 2},
          .costs = only_network(0.6 / 1'200'000),
          .compute = 3};
}

TEST(PlanModel, HasItsParametersMultiplicationsAndBuckets) {
  const auto parameters = [](const char* name) { return plan::find_model(name).parameters(); };
  EXPECT_EQ(parameters("cnn"), 431'080u);
  EXPECT_EQ(parameters("mlp"), 24'202'250u);
  EXPECT_EQ(parameters("resnet9"), 6'573'130u);
  EXPECT_EQ(parameters("resnet18"), 11'689'512u);  // as torchvision counts them
  EXPECT_EQ(parameters("resnet50"), 25'557'032u);
  EXPECT_NEAR(plan::find_model("resnet18").operations() / 6, 1.814e9, 0.001e9);
  EXPECT_NEAR(plan::find_model("resnet50").operations() / 6, 4.089e9, 0.001e9);
  EXPECT_EQ(plan::model_of(2'500'000).parameters(), 2'500'000u);
  EXPECT_EQ(plan::model_of(2'500'000).layers.size(), 3u);
  EXPECT_THROW(plan::find_model("resnet51"), InvalidArgument);
  // Buckets are filled from the last layer on.
  const auto cnn = plan::buckets(plan::find_model("cnn"));
  ASSERT_EQ(cnn.size(), 2u);  // 20 KB and 1.6 MB, with which the first has enough; and the rest
  EXPECT_EQ(cnn[0].size(), 2u);
  EXPECT_EQ(cnn[0][0].rows, 10u);
  EXPECT_EQ(cnn[1].size(), 2u);
  const auto mlp = plan::buckets(plan::find_model("mlp"));
  ASSERT_EQ(mlp.size(), 3u);  // 16.8 MB, 67 MB by itself, 12.9 MB
  EXPECT_EQ(mlp[1][0].columns, 4096u);
}

TEST(Forecast, SendsWhatBackwardHasFinishedWhileItGoesOn) {
  // Of 3 s one is forward. The first bucket leaves at 2 s, the second at 3 s, and each takes 0.6 s.
  Setting setting = two_hosts();
  const auto fp32 = plan::parse_strategy("fp32");
  const auto whole = plan::forecast(setting, fp32);
  EXPECT_DOUBLE_EQ(whole.network, 1.2);
  EXPECT_DOUBLE_EQ(whole.hidden, 0.6);
  EXPECT_DOUBLE_EQ(whole.step, 3.6);
  EXPECT_DOUBLE_EQ(whole.efficiency, 3 / 3.6);
  EXPECT_DOUBLE_EQ(whole.sent, 2'400'000);
  setting.overlap = 0.5;
  EXPECT_DOUBLE_EQ(plan::forecast(setting, fp32).step, 3.7);
  setting.overlap = 0;
  EXPECT_DOUBLE_EQ(plan::forecast(setting, fp32).step, 4.2);
  setting.keeping.nodes = 1;
  EXPECT_DOUBLE_EQ(plan::forecast(setting, fp32).step, 3);
}

TEST(Forecast, OfShardedUpdatesHidesHalfOfTheExchangeAndOfParametersNothing) {
  // As above, but each bucket takes 0.3 s in backward: the first from 2 s on, the second from 3 s.
  // The all_gather of the parameters then takes 0.6 s.
  const Setting setting = two_hosts(Shard::optimizer);
  const auto sharded = plan::forecast(setting, plan::parse_strategy("fp32"));
  EXPECT_DOUBLE_EQ(sharded.network, 1.2);
  EXPECT_DOUBLE_EQ(sharded.hidden, 0.3);
  EXPECT_DOUBLE_EQ(sharded.step, 3.9);
  EXPECT_DOUBLE_EQ(sharded.sent, 2'400'000);
  EXPECT_THROW(plan::forecast(setting, plan::parse_strategy("fp16")), InvalidArgument);
  // An exchange of parameters after the step hides nothing.
  const auto every_third = plan::forecast(two_hosts(), plan::parse_strategy("local_sgd:period=3"));
  EXPECT_DOUBLE_EQ(every_third.hidden, 0);
  EXPECT_DOUBLE_EQ(every_third.step, 3.4);
}

TEST(Forecast, AddsWorkInMemoryToTheStep) {
  Setting setting{.model = two_layers(), .keeping = {.ranks_per_node = 4}, .compute = 1};
  setting.costs = only_network(0);
  setting.costs.moved_byte = 1e-7;
  setting.costs.synchronization = 0.01;
  // Two buckets of two synchronizations, and 2·N·S bytes of 1200000 each.
  EXPECT_DOUBLE_EQ(plan::forecast(setting, plan::parse_strategy("fp32")).step,
                   1 + 2 * (0.02 + 2 * 4 * 0.12));
}

TEST(Forecast, IsPaddlesExample) {
  // 32 devices of 256 images a second at an efficiency of 0.8 make 6553.6.
  const Layer layer{.rows = 1, .columns = 1'000'000};
  const double sent = 2.0 * 31 / 32 * 4e6;
  const Setting setting{.model = {.name = "one", .layers = {layer}},
                        .keeping = {.nodes = 32},
                        .costs = only_network(0.25 / sent),
                        .batch = 256,
                        .compute = 1};
  const auto foretold = plan::forecast(setting, plan::parse_strategy("fp32"));
  EXPECT_DOUBLE_EQ(foretold.efficiency, 0.8);
  EXPECT_NEAR(foretold.throughput, 6553.6, 1e-9);
  // Samples beyond those of an int.
  const Setting many{.model = {.name = "one", .layers = {{.rows = 1, .columns = 1}}},
                     .keeping = {.nodes = 1000, .ranks_per_node = 8},
                     .batch = 300'000,
                     .compute = 1};
  const auto of_many = plan::forecast(many, plan::parse_strategy("fp32"));
  EXPECT_DOUBLE_EQ(of_many.throughput, 2.4e9 / of_many.step);
}

double sent(const char* strategy, const std::vector<Layer>& layers, const Placement& placement) {
  return plan::exchange(plan::parse_strategy(strategy), layers, placement).traffic.sent;
}

TEST(PlanExchange, CountsWhatStrategiesSend) {
  const auto pair = Placement::uniform(2, 1);
  const std::vector<Layer> layers{{.rows = 100, .columns = 50, .vectors = 100}};
  EXPECT_DOUBLE_EQ(sent("fp32", layers, pair), 4 * 5100);
  EXPECT_DOUBLE_EQ(sent("fp16", layers, pair), 2 * 5100);
  EXPECT_DOUBLE_EQ(sent("topk:0.01", layers, pair), 8 * 51);
  EXPECT_DOUBLE_EQ(sent("topk:1e-6", layers, pair), 8);  // one at least
  // Half of the codes to the other, and the mean of the other half back.
  EXPECT_DOUBLE_EQ(sent("int8", layers, pair), 5100 * (1 + 1.0 / 128));
  EXPECT_DOUBLE_EQ(sent("power_sgd:rank=2", layers, pair), 4 * (2 * 150 + 100));
  // A rank of 40 saves nothing: the matrices are sent uncompressed.
  EXPECT_DOUBLE_EQ(sent("power_sgd:rank=40", layers, pair), 4 * 5100);
  EXPECT_DOUBLE_EQ(sent("local_sgd:4", layers, pair), 5100);
  // Both ranks of a host carry the picks of half of the host's sums to the other.
  EXPECT_DOUBLE_EQ(sent("topk:0.01", layers, Placement::uniform(2, 2)), 2 * 8 * 26);
  EXPECT_EQ(sent("topk", layers, Placement::uniform(1, 1)), 0);
}

TEST(PlanStrategy, RefusesWhatItCannotForetell) {
  for (const char* text :
       {"adasum", "threshold:0.1", "topk:2", "topk:0", "topk:nan", "power_sgd:rank=0",
        "power_sgd:rank=1.5", "local_sgd:rank=4", "fp32:1", ""}) {
    EXPECT_THROW(plan::parse_strategy(text), InvalidArgument) << text;
  }
  EXPECT_EQ(plan::parse_strategy("topk").value, 0.01);
  EXPECT_EQ(plan::parse_strategy("topk:0.1,feedback=off").value, 0.1) << "as the library parses it";
  EXPECT_EQ(plan::parse_strategy("power_sgd:rank=2").value, 2);
  EXPECT_EQ(plan::parse_strategy("powersgd:rank=2").value, 2) << "the name before version 0.2";
  const Setting unknown{.model = plan::model_of(1000), .keeping = {.nodes = 2}, .compute = 1};
  EXPECT_THROW(plan::forecast(unknown, plan::parse_strategy("power_sgd")), InvalidArgument);
}

/// Values of Measurement::over_network.
struct Over {
  static constexpr bool memory = false;
  static constexpr bool network = true;
};

constexpr double MB = 1e6;

TEST(PlanFit, FindsWhatMadeTheTimes) {
  // Two synchronizations of 1 ms and 2·N·S bytes of 2 ns; 3 messages of 10 ms and S bytes of 5 ns,
  // with the ranks' own work left out.
  Costs costs;
  costs.synchronization_rank = 0;
  costs.message = 0;
  const auto fitted = plan::fit(costs, {{Over::memory, 2, 1 * MB, 0.002 + 0.008},
                                        {Over::memory, 2, 4 * MB, 0.002 + 0.032},
                                        {Over::memory, 3, 1 * MB, 0.002 + 0.012}});
  EXPECT_NEAR(fitted.synchronization, 1e-3, 1e-12);
  EXPECT_NEAR(fitted.moved_byte, 2e-9, 1e-18);
  EXPECT_EQ(fitted.remote_message, costs.remote_message);
  EXPECT_EQ(fitted.sent_byte, costs.sent_byte);

  // Summing reads and writes (N+1)/N·S bytes: 1.5 MB, which take 3 ms by the fit above.
  Costs between = fitted;
  const auto both = plan::fit(between, {{Over::network, 2, 1 * MB, 0.03 + 0.005 + 0.003},
                                        {Over::network, 2, 8 * MB, 0.03 + 0.04 + 0.024}});
  EXPECT_NEAR(both.remote_message, 1e-2, 1e-12);
  EXPECT_NEAR(both.sent_byte, 5e-9, 1e-18);
  EXPECT_EQ(both.synchronization, fitted.synchronization);
}

TEST(PlanFit, KeepsWhatNothingIsKnownOf) {
  const Costs costs;
  EXPECT_EQ(plan::fit(costs, {}).moved_byte, costs.moved_byte);
  // One size tells the byte, beside synchronizations as they were.
  const double synchronizations = 2 * costs.synchronization;
  const auto one = plan::fit(costs, {{Over::memory, 2, 1 * MB, synchronizations + 4 * MB * 3e-9}});
  EXPECT_EQ(one.synchronization, costs.synchronization);
  EXPECT_NEAR(one.moved_byte, 3e-9, 1e-18);
  // A larger buffer in less time than a smaller one: no meeting takes less than nothing.
  const auto odd =
      plan::fit(costs, {{Over::memory, 2, 1 * MB, 0.001}, {Over::memory, 2, 9 * MB, 0.02}});
  EXPECT_GE(odd.synchronization, 0);
  EXPECT_GT(odd.moved_byte, 0);
  // One rank exchanges nothing.
  EXPECT_EQ(plan::fit(costs, {{Over::memory, 1, 1 * MB, 0.001}}).moved_byte, costs.moved_byte);
}

constexpr int adam = 2;

TEST(ModelMemory, IsThatOfTheZeroPaper) {
  // Rajbhandari et al., figure 1, has 16-bit parameters and 12 bytes of state for 64 ranks: 120 GB,
  // 31.4 GB and 16.6 GB of 7.5 billion. With float32 throughout, per parameter: 4 + 4 + 8 bytes,
  // 4 + 4 + 8/64 and 4 + (4 + 8)/64.
  Keeping keeping{.state_tensors = adam, .nodes = 8, .ranks_per_node = 8};
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_rank, 16);
  keeping.shard = Shard::optimizer;
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_rank, 8.125);
  keeping.shard = Shard::gradients;
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_rank, 4.1875);
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_host(8), 33.5);
  EXPECT_EQ(plan::state_tensors("amsgrad"), 3);
}

TEST(ModelMemory, OfOneCopyIsSharedByTheHost) {
  Keeping keeping{.share_memory = true, .state_tensors = adam, .nodes = 1, .ranks_per_node = 4};
  const auto memory = plan::bytes_per_parameter(keeping);
  EXPECT_DOUBLE_EQ(memory.shared, 12);  // parameters and two tensors of state
  EXPECT_DOUBLE_EQ(memory.of_rank, 8);  // .grad(), and the bucket
  EXPECT_DOUBLE_EQ(memory.of_host(4), 44);
  keeping.nodes = 2;
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter(keeping).of_host(4), 28);  // .grad() is in the bucket
  // That of one rank is the same in all ways.
  for (const auto shard : {Shard::none, Shard::optimizer, Shard::gradients}) {
    EXPECT_DOUBLE_EQ(plan::bytes_per_parameter({.shard = shard, .state_tensors = 1}).of_host(1),
                     12);
  }
  EXPECT_DOUBLE_EQ(plan::bytes_per_parameter({.share_memory = true, .state_tensors = 1}).of_host(1),
                   12);
  // 4 ranks need 2 bytes each for other things; 16 bytes a parameter and rank.
  const Keeping apart{.state_tensors = adam, .nodes = 2, .ranks_per_node = 4};
  EXPECT_DOUBLE_EQ(plan::largest_model(apart, 648, 2), 10);
  EXPECT_EQ(plan::largest_model(apart, 7, 2), 0);
}

}  // namespace
}  // namespace lockstep::testing
