// Strategies of parameters by name: as if each group of parameters had a wrapper of its own.
#include "lockstep/strategies.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

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

}  // namespace
}  // namespace lockstep::testing
