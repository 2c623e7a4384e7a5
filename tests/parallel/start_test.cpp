#include "parallel/agree.h"
#include "parallel/shared_memory.h"
#include "tests/comm/failures.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"
#include "tests/variable.h"

// How ranks come to start from the same model, what is refused before they do, and replicas that
// must be equal and are not.

namespace lockstep::testing {
namespace {

/// The message with which the model is refused; "" if it is wrapped.
std::string refused(const Group& world, const std::shared_ptr<Terms>& model,
                    const DataParallelOptions& options = {}) {
  return refusal([&] { DistributedDataParallel ddp(model, world, options); });
}

TEST(OptionDefaults, AreThoseOfTheVariables) {
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{25} << 20);
  EXPECT_FALSE(detail::shares_memory({}));
  const Variable share("LOCKSTEP_SHARE_MEMORY", "1");
  EXPECT_TRUE(detail::shares_memory({}));
  EXPECT_FALSE(detail::shares_memory({.share_memory = false}));
  const Variable bucket("LOCKSTEP_BUCKET_MIB", "5");
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{5} << 20);
  EXPECT_EQ(DataParallelOptions{}.buckets.first, std::size_t{1} << 20);
  EXPECT_EQ((DataParallelOptions{.buckets = {.first = 3, .rest = 7}}.buckets.rest), 7u);
  // Options may be constructed before main(). init() reports the variable.
  const Variable unusable("LOCKSTEP_BUCKET_MIB", "many");
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{25} << 20);
}

TEST_ON_RANKS(SharedMemory, StaysTheParentsIfAChildDestroysIt, 2) {
  auto tensor = detail::shared_memory(world, 64);
  const auto* const references =
      reinterpret_cast<const std::atomic<int>*>(tensor.data_ptr<std::uint8_t>() - 64);
  EXPECT_EQ(in_child([&] { return tensor.reset(), std::string(); }), "");
  world.barrier().wait();
  EXPECT_EQ(references->load(), 2);
  world.barrier().wait();
}

TEST_ON_RANKS(Agree, NamesTheFirstDifferenceAndTheRanks, 7) {
  using Lines = std::vector<std::string>;
  const auto disagreement = [&](const Lines& lines) {
    return refusal([&] { detail::agree(world, "here", lines); });
  };
  EXPECT_EQ(disagreement({}), "");
  EXPECT_EQ(disagreement({"one", "", "three"}), "");
  EXPECT_THAT(
      disagreement({"same", world.rank() % 3 == 0 ? "x" : "y", std::to_string(world.rank())}),
      AllOf(StartsWith("here rank " + std::to_string(world.rank()) + " of 7: "),
            HasSubstr("x on ranks 0, 3, 6; y on ranks 1, 2, 4, 5")));
  EXPECT_THAT(disagreement(world.rank() == 4 ? Lines{"same"} : Lines{"same", "more"}),
              HasSubstr("nothing on rank 4"));
  EXPECT_THAT(disagreement(world.rank() == 0 ? Lines{} : Lines{"a"}),
              HasSubstr("nothing on rank 0; a on ranks 1, 2, 3, 4, 5, 6"));
}

TEST_ON_RANKS(Start, GivesAllRanksRankZerosParametersAndBuffers, 3) {
  struct Odd : torch::nn::Module {
    at::Tensor forward() { return weight.sum(); }
    at::Tensor weight = register_parameter("weight", at::ones({3, 5}).t());
    at::Tensor frozen = register_parameter("frozen", at::ones({7}), false);
    at::Tensor flags = register_buffer("flags", at::zeros({3}, at::kBool));
    at::Tensor count = register_buffer("count", at::zeros({}, at::kLong));
    at::Tensor complex = register_buffer("complex", at::zeros({2}, at::kComplexDouble));
    at::Tensor empty = register_buffer("empty", at::zeros({0}));
  };
  const auto fill = [](Odd& model, int mark) {
    model.weight.detach().fill_(mark);
    model.weight.detach()[2][1] = 1;
    model.frozen.fill_(mark);
    model.flags[1] = mark == 5;
    model.count.fill_(mark);
    model.complex.fill_(mark);
  };
  Odd expected;
  fill(expected, 5);
  for (const int root : {0, 2}) {
    auto model = std::make_shared<Odd>();
    fill(*model, world.rank() == root ? 5 : 9);
    std::optional<DistributedDataParallel<Odd>> ddp;
    if (root == 0) {
      ddp.emplace(model, world);
    } else {
      broadcast_parameters(*model, world, root);
    }
    expect_equal_models(*model, expected);
    expect_equal_tensors(model->buffers(), expected.buffers());
  }
}

TEST_ON_RANKS(Start, OfAModelLargerThanOneBroadcast, 2) {
  torch::nn::Module model;
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(model.register_parameter(
        lockstep::detail::concat("p", i), at::full({(3 << 20) + i}, 10.0F * world.rank() + i)));
  }
  broadcast_parameters(model, world);
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(parameters[static_cast<std::size_t>(i)].eq(i).all().item<bool>());
  EXPECT_THROW(broadcast_parameters(model, world, 2), InvalidArgument);
  expect_usable(world);
}

TEST_ON_RANKS(Start, RefusesModelsAndOptionsThatDifferAndNamesTheDifference, 3) {
  const bool odd_one = world.rank() == 1;
  EXPECT_THAT(
      refused(world, make_terms({{3}, {2, odd_one ? 6 : 5}, {odd_one ? 1 : 2}})),
      AllOf(HasSubstr("DistributedDataParallel rank " + std::to_string(world.rank()) + " of 3"),
            HasSubstr("p1 Float [2, 5] on ranks 0, 2"), HasSubstr("p1 Float [2, 6] on rank 1")));
  EXPECT_THAT(refused(world, make_terms({{3}}, odd_one ? at::kDouble : at::kFloat)),
              AllOf(HasSubstr("p0 Float [3] on ranks 0, 2"), HasSubstr("p0 Double [3] on rank 1")));
  EXPECT_THAT(refused(world, odd_one ? make_terms({{3}, {4}}) : make_terms({{3}})),
              HasSubstr("parameter p1 Float [4] on rank 1"));
  EXPECT_THAT(refused(world, odd_one ? nullptr : make_terms({{2}})),
              AllOf(HasSubstr("got no model on rank 1"), HasSubstr("on ranks 0, 2")));
  auto model = make_terms({{3}});
  if (odd_one) model->p[0].set_requires_grad(false);
  EXPECT_THAT(refused(world, model),
              HasSubstr("an error: the model has no parameter that requires a gradient on rank 1"));
  const auto of = [&](const DataParallelOptions& options) {
    return refused(world, make_terms({{3, 3}, {2}}), options);
  };
  EXPECT_THAT(of({.buckets = {.first = odd_one ? 1U : 2U}}),
              AllOf(HasSubstr("buckets of 2"), HasSubstr("buckets of 1")));
  EXPECT_THAT(of({.check_finite = odd_one}), HasSubstr(", check_finite on rank 1"));
  EXPECT_THAT(of({.strategies = {{odd_one ? "p1" : "p0", Fp16{}}}}),
              AllOf(HasSubstr("p0=fp16"), HasSubstr("p1=fp16")));
  model = make_terms({{3, 3}, {2}});
  if (odd_one) model->p[0].set_data(at::ones({3, 3}).t());
  EXPECT_THAT(refused(world, model), HasSubstr("p0 Float [3, 3] strides [1, 3] on rank 1"));
  model = make_terms({{3, 3}, {2}});
  if (odd_one) model->p[1].set_requires_grad(false);
  EXPECT_THAT(refused(world, model), HasSubstr("p1 Float [2] frozen on rank 1"));
  expect_usable(world);
}

TEST_ON_RANKS(Start, WithTheSameSeedOnlyVerifies, 3) {
  auto model = std::make_shared<Mlp>();
  set_values(*model, 4);
  const DataParallelOptions options{.initial_sync = InitialSync::same_seed};
  { DistributedDataParallel ddp(model, world, options); }
  if (world.rank() == 2) model->layers[1]->bias.detach()[3] += 1e-6;
  EXPECT_THAT(refusal([&] { DistributedDataParallel ddp(model, world, options); }),
              AllOf(HasSubstr("parameter layer1.bias"), HasSubstr("on rank 2")));
  expect_usable(world);
}

TEST_ON_RANKS(Start, RefusesModelsThatCannotBeWrapped, 2) {
  struct Schedule : AllReduce {
    std::string text() const { return "rarely"; }
    SyncTarget target(std::int64_t step, std::size_t, std::size_t) const {
      return step % 10 == 0 ? SyncTarget::parameters : SyncTarget::none;
    }
  };
  const auto says = [&](const std::shared_ptr<Terms>& model, const char* what) {
    EXPECT_THAT(refused(world, model), HasSubstr(what));
  };
  const auto model = make_terms({{3}});
  EXPECT_THAT(refused(world, model, {.strategy = Schedule{}}),
              AllOf(HasSubstr("rarely"), HasSubstr("DistributedOptimizer")));
  says(nullptr, "got no model");
  says(make_terms({}), "no parameter");
  says(make_terms({{3}}, at::kComplexFloat), "p0: got ComplexFloat");
  {
    DistributedDataParallel ddp(model, world);
    says(model, "p0: another wrapper already synchronises it");
    says(model, "pass a DistributedDataParallel to the DistributedOptimizer in place of its model");
    auto outer = make_terms({{2}});
    outer->register_module("inner", model);
    says(outer, "inner.p0: another wrapper already synchronises it");
  }
  const auto of_buffer = [&](const at::Tensor& buffer) {
    const auto built = make_terms({{3}});
    built->register_buffer("extra", buffer);
    return refused(world, built);
  };
  EXPECT_THAT(of_buffer(at::ones({2}).to_sparse()),
              AllOf(HasSubstr("buffer extra: got layout Sparse"), HasSubstr("convert it")));
  EXPECT_THAT(of_buffer(at::ones({2, 1}).expand({2, 4})),
              AllOf(HasSubstr("buffer extra: got an expanded tensor"), HasSubstr("contiguous()")));
  EXPECT_THAT(of_buffer(at::_neg_view(at::ones({2}))),
              AllOf(HasSubstr("buffer extra: got a negated view"), HasSubstr("clone()")));
  EXPECT_THAT(of_buffer(at::_efficientzerotensor({2})),
              HasSubstr("buffer extra: got a zero without memory"));
  EXPECT_EQ(of_buffer(at::ones({2}, at::kComplexFloat)), "");
  auto expanded = make_terms({{3}});
  expanded->add(at::ones({1}).expand({4}).detach());
  says(expanded, "parameter p1: got an expanded tensor");
  expanded->p[1].set_requires_grad(false);
  says(expanded, "parameter p1: got an expanded tensor");
  EXPECT_EQ(refused(world, model), "");  // once the first is gone
  expect_usable(world);
}

DataParallelOptions every(std::int64_t n) {
  return {.buckets = {.first = 0, .rest = 0}, .verify_every = n};
}

/// Changes one bit of one element on this rank only.
void flip(const at::Tensor& parameter, std::int64_t element, int bit) {
  auto* word = static_cast<std::uint32_t*>(parameter.data_ptr()) + element;
  *word ^= std::uint32_t{1} << bit;
}

/// The steps until backward throws, and what it says.
struct Found {
  int steps = 0;
  std::string text;
  int rank = -1;
};

Found train_until_found(DistributedDataParallel<Terms>& ddp, Terms& model, int rank, int at_most) {
  for (int step = 1; step <= at_most; ++step) {
    model.zero_grad();
    try {
      ddp(coefficients(rank, model)).backward();
    } catch (const ReplicaError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::replica);
      EXPECT_EQ(error.operation(), "consistency check");
      return {step, error.what(), error.rank()};
    }
  }
  return {};
}

SUITE_ON_RANKS(PlantedBit, 2, 3, 4, 7);

TEST_P_ON_RANKS(PlantedBit, IsNamedWithinOneRotation) {
  for (std::size_t i = 0; i < some_shapes.size(); ++i) {
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world, every(1));
    EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 2 * 4).steps, 0);
    const int wrong = world.size() - 1;
    if (world.rank() == wrong) flip(model->p[i], 0, static_cast<int>(i));
    const auto [steps, text, rank] = train_until_found(ddp, *model, world.rank(), 4);
    EXPECT_GT(steps, 0) << "not found";
    EXPECT_EQ(rank, wrong);
    EXPECT_THAT(text, AllOf(HasSubstr("parameter p" + std::to_string(i) + " with checksum"),
                            HasSubstr("on rank " + std::to_string(wrong)),
                            HasSubstr("in bucket " + std::to_string(some_shapes.size() - 1 - i)),
                            HasSubstr("no_sync()"), HasSubstr("learning rate of one rank")));
    // Once mended, training goes on.
    if (world.rank() == wrong) flip(model->p[i], 0, static_cast<int>(i));
    EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 4).steps, 0);
    EXPECT_TRUE(near(model->p[1].grad(), mean_coefficient(world.size(), 1, model->p[1])));
  }
}

TEST_ON_RANKS(ConsistencyCheck, ComparesAtEveryNthExchangeOrNever, 2) {
  {
    auto model = make_terms({{5}});
    DistributedDataParallel third(model, world, every(3));
    EXPECT_EQ(train_until_found(third, *model, world.rank(), 1).steps, 0);  // compares exchange 0
    if (world.rank() == 0) flip(model->p[0], 4, 31);
    // Exchanges 1 and 2 are not compared.
    EXPECT_EQ(train_until_found(third, *model, world.rank(), 9).steps, 3);
  }
  auto model = make_terms(some_shapes);
  DistributedDataParallel never(model, world, every(0));
  if (world.rank() == 0) flip(model->p[0], 0, 3);
  EXPECT_EQ(train_until_found(never, *model, world.rank(), 9).steps, 0);
  EXPECT_NE(refusal([&] { DistributedDataParallel(make_terms({{5}}), world, every(-1)); }), "");
  expect_usable(world);
}

TEST_ON_RANKS(ConsistencyCheck, SeesEveryLayoutOfParameters, 2) {
  struct Strided : Terms {
    Strided() : Terms({}) {
      add(at::ones({4, 6}).t().detach());
      add(at::ones({4, 6}).slice(1, 0, 6, 2).detach());  // with holes
      add(at::ones({0}));
    }
  };
  auto model = std::make_shared<Strided>();
  DistributedDataParallel<Terms> ddp(model, world, every(1));
  EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 6).steps, 0);
  if (world.rank() == 1) flip(model->p[1], 1, 7);  // in a hole: nobody's
  EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 6).steps, 0);
  if (world.rank() == 1) flip(model->p[1], 2, 7);
  EXPECT_THAT(train_until_found(ddp, *model, world.rank(), 3).text,
              HasSubstr("parameter p1 with checksum"));
}

}  // namespace
}  // namespace lockstep::testing
