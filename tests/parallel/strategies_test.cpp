// Strategies of parameters by name: as if each group of parameters had a wrapper of its own.
// Strategies where hosts hold several ranks: threads that are said to be on two hosts.
#include "lockstep/strategies.h"

#include "tests/parallel/models.h"
#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"

namespace lockstep::testing {
namespace {

const std::vector<std::vector<std::int64_t>> four_shapes{{40}, {6, 7}, {17}, {9}};

ModelView part_of(const Terms& model, std::size_t begin, std::size_t end) {
  std::vector<NamedTensor> parameters;
  for (auto i = begin; i < end; ++i)
    parameters.push_back({lockstep::detail::concat("p", i), model.p[i]});
  return ModelView(std::move(parameters));
}

/// Coefficients that no rank has twice.
std::vector<at::Tensor> terms_of(const Group& group, const Terms& model, int step) {
  std::vector<at::Tensor> terms;
  for (const auto& parameter : model.p) {
    terms.push_back(random(parameter.sizes(), static_cast<std::uint64_t>(
                                                  100 * step + 10 * group.rank() + terms.size())));
  }
  return terms;
}

void expect_equal_terms(const Terms& got, const Terms& expected) {
  expect_equal_tensors(got.p, expected.p);
  for (std::size_t i = 0; i < got.p.size(); ++i) {
    if (!expected.p[i].grad().defined()) continue;
    EXPECT_TRUE(at::equal(got.p[i].grad(), expected.p[i].grad())) << i;
  }
}

SUITE_ON_RANKS(ParameterStrategyTest, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(ParameterStrategyTest, GivesEachGroupWhatAWrapperOfItsOwnGives) {
  for (const BucketCaps caps : {BucketCaps{}, BucketCaps{.first = 0, .rest = 0}}) {
    const auto model = make_terms(four_shapes), apart = make_terms(four_shapes);
    DistributedDataParallel ddp(
        model, world,
        {.buckets = caps, .strategies = {{"p[01]", TopK{.ratio = 0.2}}, {"p2", Int8{}}}});
    DistributedDataParallel top_k(part_of(*apart, 0, 2), world,
                                  {.buckets = caps, .strategy = TopK{.ratio = 0.2}});
    DistributedDataParallel int8(part_of(*apart, 2, 3), world,
                                 {.buckets = caps, .strategy = Int8{}});
    DistributedDataParallel plain(part_of(*apart, 3, 4), world, {.buckets = caps});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      apart->zero_grad();
      const auto terms = terms_of(world, *model, step);
      ddp(terms).backward();
      top_k([&] { return apart->forward(terms); }).backward();
      expect_equal_terms(*model, *apart);
    }
  }
}

TEST_P_ON_RANKS(ParameterStrategyTest, CountsThePartitionsOfEachStrategyAlone) {
  const auto model = make_terms(four_shapes), apart = make_terms(four_shapes);
  torch::optim::SGD sgd(model->parameters(), 0.1), first_sgd({apart->p[0], apart->p[1]}, 0.1);
  torch::optim::SGD last_sgd({apart->p[2], apart->p[3]}, 0.1);
  const BucketCaps caps{.first = 0, .rest = 0};
  DistributedOptimizer optimizer(sgd, *model, world,
                                 {.buckets = caps, .strategies = {{"p[01]", PartialUpdate{}}}});
  DistributedOptimizer first(first_sgd, part_of(*apart, 0, 2), world,
                             {.buckets = caps, .strategy = PartialUpdate{}});
  DistributedOptimizer last(last_sgd, part_of(*apart, 2, 4), world, {.buckets = caps});
  EXPECT_TRUE(optimizer.replicas_may_differ());
  for (int step = 0; step < 4; ++step) {
    const auto terms = terms_of(world, *model, step);
    optimizer.backward_and_update(model->forward(terms));
    apart->forward(terms).backward();
    for (auto* one : {&first, &last}) {
      one->step();
      one->zero_grad();
    }
    expect_equal_terms(*model, *apart);
  }
  optimizer.synchronize();
  first.synchronize();
  expect_equal_terms(*model, *apart);
}

/// The message of the refusal of a wrapper, which leaves the group usable.
std::string refusal_of(const Group& world, const DataParallelOptions& options,
                       const std::vector<at::ScalarType>& dtypes = {at::kFloat, at::kFloat}) {
  auto model = make_terms({});
  for (const auto dtype : dtypes) model->add(at::ones({5}, dtype));
  const auto message = refusal([&] { DistributedDataParallel ddp(model, world, options); });
  world.barrier().wait();
  return message;
}

TEST_ON_RANKS(ParameterStrategies, RefusePatternsThatMatchNothingAndUnsuitableStrategies, 3) {
  EXPECT_THAT(
      refusal_of(world, {.strategies = {{"q*", Fp16{}}}}),
      HasSubstr("strategies: got the pattern 'q*', which matches no parameter of the model, "
                "expected a pattern of names such as 'p0'"));
  EXPECT_THAT(refusal_of(world, {.strategies = {{"p1", LocalSgd{.period = 2}}}}),
              HasSubstr("strategy fp32, p1=local_sgd:period=2 does not average every gradient"));
  EXPECT_EQ(refusal_of(world, {.strategies = {{"p1", Fp16{}}, {"*", Bf16{}}}}), "");
  EXPECT_THAT(refusal_of(world, {.optimized_only = true}), HasSubstr("which has no optimizer"));
}

/// The one rule: a strategy that does not carry the dtype of a parameter is refused.
TEST_ON_RANKS(StrategiesOfDtypes, AreRefusedByNameOrCarryTheDtype, 3) {
  const std::vector<at::ScalarType> all{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  const std::vector<at::ScalarType> wide{at::kFloat, at::kDouble}, single{at::kFloat};
  const std::vector<std::pair<Strategy, std::vector<at::ScalarType>>> cases{
      {AllReduce{}, all},  {Fp16{}, single},
      {Bf16{}, single},    {TopK{}, wide},
      {Threshold{}, wide}, {Int8{}, single},
      {PowerSgd{}, wide},  {Adasum{.of = SyncTarget::gradients}, wide}};
  for (const auto& [strategy, carries] : cases) {
    SCOPED_TRACE(strategy.text());
    for (const auto dtype : all) {
      const auto message = refusal_of(world, {.strategy = strategy}, {at::kFloat, dtype});
      if (std::ranges::find(carries, dtype) != carries.end()) {
        EXPECT_EQ(message, "");
        continue;
      }
      EXPECT_THAT(message, AllOf(HasSubstr("elements of parameter p1, expected"),
                                 HasSubstr("alone by DataParallelOptions::strategies")));
      // The remedy of the message.
      const DataParallelOptions apart{.strategy = strategy, .strategies = {{"p1", AllReduce{}}}};
      EXPECT_EQ(refusal_of(world, apart, {at::kFloat, dtype}), "");
    }
  }
}

const std::vector<int> two_hosts{0, 0, 1, 1};

std::shared_ptr<Terms> make_zeros() {
  auto model = make_terms({{20, 11}, {3, 11}, {30, 11}, {7, 11}, {16, 11}});
  for (const auto& parameter : model->p) parameter.detach().zero_();
  return model;
}

/// The gradients of a rank in a step.
std::vector<at::Tensor> slopes(const Terms& model, int rank, int step) {
  std::vector<at::Tensor> slopes;
  for (std::size_t i = 0; i < model.p.size(); ++i) {
    const auto places = at::arange(model.p[i].numel(), at::kFloat).view(model.p[i].sizes());
    slopes.push_back(at::sin(places * 0.37 + 5 * rank + 3 * step + static_cast<double>(i)));
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
    train(on_hosts(threads, two_hosts), of_ranks,
          [&](const Terms& model, int step) { return slopes(model, threads.rank(), step); });
  });
  spawn(2, [&](const Group& hosts) {
    train(hosts, of_hosts, [&](const Terms& model, int step) {
      auto mean = slopes(model, 2 * hosts.rank(), step);
      const auto others = slopes(model, 2 * hosts.rank() + 1, step);
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
