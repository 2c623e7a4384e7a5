// Strategies of parameters by name: as if each group of parameters had a wrapper of its own.

#include <utility>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategies.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

const std::vector<std::vector<std::int64_t>> four_shapes{{40}, {6, 7}, {17}, {9}};

ModelView part_of(const Terms& model, std::size_t begin, std::size_t end) {
  std::vector<NamedTensor> parameters;
  for (auto i = begin; i < end; ++i) {
    parameters.push_back({lockstep::detail::concat("p", i), model.p[i]});
  }
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

void expect_equal(const Terms& got, const Terms& expected) {
  for (std::size_t i = 0; i < got.p.size(); ++i) {
    EXPECT_TRUE(at::equal(got.p[i], expected.p[i])) << i;
    if (!expected.p[i].grad().defined()) continue;
    EXPECT_TRUE(at::equal(got.p[i].grad(), expected.p[i].grad())) << i;
  }
}

class ParameterStrategyTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParameterStrategyTest, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(ParameterStrategyTest, GivesEachGroupWhatAWrapperOfItsOwnGives) {
  on_ranks(GetParam(), [](const Group& world) {
    for (const BucketCaps caps : {BucketCaps{}, BucketCaps{.first = 0, .rest = 0}}) {
      const auto model = std::make_shared<Terms>(four_shapes),
                 apart = std::make_shared<Terms>(four_shapes);
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
        expect_equal(*model, *apart);
      }
    }
  });
}

TEST_P(ParameterStrategyTest, CountsThePartitionsOfEachStrategyAlone) {
  on_ranks(GetParam(), [](const Group& world) {
    const auto model = std::make_shared<Terms>(four_shapes),
               apart = std::make_shared<Terms>(four_shapes);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    torch::optim::SGD first_sgd({apart->p[0], apart->p[1]}, 0.1);
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
      expect_equal(*model, *apart);
    }
    optimizer.synchronize();
    first.synchronize();
    expect_equal(*model, *apart);
  });
}

/// The message that every rank's construction of a wrapper raises.
std::string refusal_of(const DataParallelOptions& options,
                       const std::vector<at::ScalarType>& dtypes = {at::kFloat, at::kFloat}) {
  std::vector<std::string> messages(3);
  on_ranks(3, [&](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>());
    for (const auto dtype : dtypes) model->add(at::ones({5}, dtype));
    messages[static_cast<std::size_t>(world.rank())] =
        refusal([&] { DistributedDataParallel ddp(model, world, options); });
    world.barrier().wait();  // the group stays usable
  });
  for (const auto& message : messages) EXPECT_EQ(message.empty(), messages[0].empty());
  return messages[1];
}

TEST(ParameterStrategies, RefusePatternsThatMatchNothingAndUnsuitableStrategies) {
  EXPECT_THAT(
      refusal_of({.strategies = {{"q*", Fp16{}}}}),
      HasSubstr("strategies: got the pattern 'q*', which matches no parameter of the model, "
                "expected a pattern of names such as 'p0'"));
  EXPECT_THAT(refusal_of({.strategies = {{"p1", LocalSgd{.period = 2}}}}),
              HasSubstr("strategy fp32, p1=local_sgd:period=2 does not average every gradient"));
  EXPECT_EQ(refusal_of({.strategies = {{"p1", Fp16{}}, {"*", Bf16{}}}}), "");
  EXPECT_THAT(refusal_of({.optimized_only = true}), HasSubstr("which has no optimizer"));
}

/// The one rule: a strategy that does not carry the dtype of a parameter is refused.
TEST(StrategiesOfDtypes, AreRefusedByNameOrCarryTheDtype) {
  struct Case {
    Strategy strategy;
    std::vector<at::ScalarType> carries;
  };
  const std::vector<at::ScalarType> all{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  const std::vector<at::ScalarType> wide{at::kFloat, at::kDouble}, single{at::kFloat};
  const std::vector<Case> cases{{AllReduce{}, all},  {Fp16{}, single},
                                {Bf16{}, single},    {TopK{}, wide},
                                {Threshold{}, wide}, {Int8{}, single},
                                {PowerSgd{}, wide},  {Adasum{.of = SyncTarget::gradients}, wide}};
  for (const auto& [strategy, carries] : cases) {
    for (const auto dtype : all) {
      const auto refusal = refusal_of({.strategy = strategy}, {at::kFloat, dtype});
      if (std::find(carries.begin(), carries.end(), dtype) != carries.end()) {
        EXPECT_EQ(refusal, "") << strategy.text();
        continue;
      }
      EXPECT_THAT(refusal, AllOf(HasSubstr("elements of parameter p1, expected"),
                                 HasSubstr("alone by DataParallelOptions::strategies")));
      // The remedy of the message.
      EXPECT_EQ(refusal_of({.strategy = strategy, .strategies = {{"p1", AllReduce{}}}},
                           {at::kFloat, dtype}),
                "")
          << strategy.text();
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
