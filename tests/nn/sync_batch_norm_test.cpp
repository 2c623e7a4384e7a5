// One layer on N ranks is one layer of one process with the whole batch.
#include "lockstep/sync_batch_norm.h"

#include "tests/nn/whole_batch.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using Options = torch::nn::BatchNormOptions;

SyncBatchNorm make_norm(const Group& world, const Options& options = Options(channels),
                        at::ScalarType dtype = at::kDouble) {
  SyncBatchNorm norm(options, world);
  norm->to(dtype);
  set_parameters(*norm);
  return norm;
}

/// One step of the rank with its part.
NormResult step(SyncBatchNorm& norm, const WholeBatch& batch, const Group& world,
                at::ScalarType dtype = at::kDouble) {
  norm->zero_grad();
  auto x = batch.part(batch.input, world.rank()).to(dtype).clone().requires_grad_();
  const auto output = norm(x);
  EXPECT_EQ(output.scalar_type(), dtype);
  output.backward(batch.part(batch.gradient, world.rank()).to(dtype));
  return {.output = output.detach(),
          .input_gradient = x.grad(),
          .weight_gradient = sum_of_ranks(norm->weight, world),
          .bias_gradient = sum_of_ranks(norm->bias, world),
          .running_mean = norm->running_mean,
          .running_var = norm->running_var};
}

void expect_part(const NormResult& got, const NormResult& whole, const WholeBatch& batch,
                 const Group& world, double tolerance) {
  const auto part = [&](const at::Tensor& tensor) { return batch.part(tensor, world.rank()); };
  EXPECT_LT(deviation(got.output, part(whole.output)), tolerance);
  EXPECT_LT(deviation(got.input_gradient, part(whole.input_gradient)), tolerance);
  EXPECT_LT(deviation(got.weight_gradient, whole.weight_gradient), tolerance);
  EXPECT_LT(deviation(got.bias_gradient, whole.bias_gradient), tolerance);
  EXPECT_LT(deviation(got.running_mean, whole.running_mean), tolerance);
  EXPECT_LT(deviation(got.running_var, whole.running_var), tolerance);
  expect_same_bits(got.running_mean, world);
  expect_same_bits(got.running_var, world);
}

/// Some steps of both, from the same beginning.
void expect_equal_to_one_process(int ranks, const std::vector<std::int64_t>& parts,
                                 const std::vector<std::int64_t>& behind,
                                 const Options& options = Options(channels)) {
  on_ranks(ranks, [&](const Group& world) {
    SCOPED_TRACE(detail::concat("rank ", world.rank(), " of ", ranks, ", ", behind.size(),
                                " dimensions behind channels"));
    auto norm = make_norm(world, options);
    for (int number = 1; number <= 3; ++number) {
      const WholeBatch batch(parts, behind, static_cast<std::uint64_t>(number));
      const double momentum = options.momentum().value_or(1.0 / number);
      const auto whole = in_one_process(batch.input, batch.gradient, *norm, momentum);
      expect_part(step(norm, batch, world), whole, batch, world, 1e-10);
    }
  });
}

const std::vector<std::vector<std::int64_t>> shapes_behind{{}, {5}, {3, 4}, {2, 3, 2}};

SUITE_ON_RANKS(SyncNorm, 1, 2, 3, 4, 7);

TEST_P(SyncNorm, OfPartsIsOneProcess) {
  const auto n = static_cast<std::size_t>(GetParam());
  for (const auto& behind : shapes_behind)
    expect_equal_to_one_process(GetParam(), unequal_parts(GetParam()), behind);
  expect_equal_to_one_process(GetParam(), std::vector<std::int64_t>(n, 4), {3, 4});
  std::vector<std::int64_t> single(n, 1);
  if (n == 1) single[0] = 2;  // one value per channel over all ranks is rejected
  expect_equal_to_one_process(GetParam(), single, {});
}

TEST_P(SyncNorm, WithEachOptionIsOneProcess) {
  for (const auto& options :
       {Options(channels).affine(false), Options(channels).track_running_stats(false),
        Options(channels).affine(false).track_running_stats(false),
        Options(channels).momentum(std::nullopt), Options(channels).momentum(0.7).eps(0.3)})
    expect_equal_to_one_process(GetParam(), unequal_parts(GetParam()), {3}, options);
}

/// This rank's part of a batch, and what one process makes of the whole.
struct Arranged {
  Arranged(const Group& world, std::vector<std::int64_t> parts,
           std::vector<std::int64_t> behind = {4})
      : batch(std::move(parts), std::move(behind)), norm(make_norm(world)), rank(world.rank()) {}

  at::Tensor mine(const at::Tensor& tensor) const { return batch.part(tensor, rank); }

  WholeBatch batch;
  SyncBatchNorm norm;
  int rank;
  NormResult whole = in_one_process(batch.input, batch.gradient, *norm, 0.1);
};

TEST_ON_RANKS(SyncNormInput, MayHaveAnyStrides, 3) {
  const Arranged all(world, {2, 3, 1}, {4, 5});
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> layouts{
      [](const at::Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); },
      [](const at::Tensor& x) { return x.transpose(2, 3).contiguous().transpose(2, 3); },
      [](const at::Tensor& x) {
        return at::stack({x, x}, -1).select(-1, 0);
      },
      [](const at::Tensor& x) { return x; }};
  for (const auto& of_input : layouts) {
    for (const auto& of_gradient : layouts) {
      auto fresh = make_norm(world);
      auto x = of_input(all.mine(all.batch.input)).detach().requires_grad_();
      const auto output = fresh(x);
      output.backward(of_gradient(all.mine(all.batch.gradient)));
      EXPECT_LT(deviation(output.detach(), all.mine(all.whole.output)), 1e-10);
      EXPECT_LT(deviation(x.grad(), all.mine(all.whole.input_gradient)), 1e-10);
      EXPECT_LT(deviation(sum_of_ranks(fresh->weight, world), all.whole.weight_gradient), 1e-10);
    }
  }
}

TEST_ON_RANKS(SyncNormInput, OfFewerBitsIsComputedInFloat32, 3) {
  for (const auto& [dtype, parameters, tolerance] : {std::tuple(at::kFloat, at::kFloat, 1e-5),
                                                     {at::kBFloat16, at::kFloat, 2e-2},
                                                     {at::kHalf, at::kFloat, 3e-3},
                                                     {at::kBFloat16, at::kBFloat16, 3e-2}}) {
    SCOPED_TRACE(detail::concat(dtype, " with parameters of ", parameters));
    WholeBatch batch(unequal_parts(3), {3, 4});
    // As the rank sees it: near zero, where these dtypes have digits.
    batch.input = (batch.input - 3e4).to(dtype).to(at::kDouble);
    batch.gradient = batch.gradient.to(dtype).to(at::kDouble);
    auto norm = make_norm(world, Options(channels), parameters);
    const auto whole = in_one_process(batch.input, batch.gradient, *norm, 0.1);
    const auto got = step(norm, batch, world, dtype);
    expect_part(got, whole, batch, world, tolerance);
    if (parameters == at::kFloat) {
      EXPECT_LT(deviation(got.running_mean, whole.running_mean), 1e-5);
      EXPECT_LT(deviation(got.running_var, whole.running_var), 1e-5);
    }
  }
}

TEST_ON_RANKS(SyncNormInput, ThatNeedsNoGradientLeavesParametersTheirs, 3) {
  Arranged all(world, {2, 3, 1});
  auto& norm = all.norm;
  const auto x = all.mine(all.batch.input);
  norm(x).backward(all.mine(all.batch.gradient));
  EXPECT_LT(deviation(sum_of_ranks(norm->bias, world), all.whole.bias_gradient), 1e-10);
  EXPECT_LT(deviation(sum_of_ranks(norm->weight, world), all.whole.weight_gradient), 1e-10);
  norm->weight.requires_grad_(false);
  norm->bias.requires_grad_(false);
  EXPECT_FALSE(norm(x).requires_grad());
}

TEST_ON_RANKS(SyncNormInput, MayBeEmptyOnAllRanks, 2) {
  auto norm = make_norm(world);
  auto x = at::empty({0, channels, 3}, at::kDouble).requires_grad_();
  const auto output = norm(x);
  EXPECT_EQ(output.sizes(), x.sizes());
  output.sum().backward();
  EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({channels}, at::kDouble)));
  EXPECT_TRUE(at::equal(norm->running_var, at::ones({channels}, at::kDouble)));
  EXPECT_TRUE(at::equal(norm->weight.grad(), at::zeros({channels}, at::kDouble)));
}

TEST_ON_RANKS(SyncNormBackward, MayRunTwiceAndAdds, 2) {
  Arranged all(world, {2, 3});
  auto x = all.mine(all.batch.input).clone().requires_grad_();
  const auto output = all.norm(x);
  output.backward(all.mine(all.batch.gradient), /*retain_graph=*/true);
  output.backward(all.mine(all.batch.gradient));
  EXPECT_LT(deviation(x.grad(), 2 * all.mine(all.whole.input_gradient)), 1e-10);
}

TEST_ON_RANKS(SyncNormBackward, WithoutGradModeIsNone, 2) {
  for (const bool inference : {false, true}) {
    Arranged all(world, {2, 3});
    const torch::NoGradGuard no_grad;
    std::optional<c10::InferenceMode> mode;
    if (inference) mode.emplace();
    const auto output = all.norm(all.mine(all.batch.input));
    EXPECT_FALSE(output.requires_grad());
    EXPECT_LT(deviation(output, all.mine(all.whole.output)), 1e-10);
    EXPECT_LT(deviation(all.norm->running_var, all.whole.running_var), 1e-10);
  }
}

TEST_ON_RANKS(SyncNormBackward, WithCreateGraphIsRefused, 2) {
  auto norm = make_norm(world);
  auto x = random({3, channels}, 1, at::kDouble).requires_grad_();
  const auto loss = norm(x).pow(2).sum();
  expect_refused(world, "create_graph", [&] { loss.backward({}, true, /*create_graph=*/true); });
}

TEST_ON_RANKS(SyncNormEvaluation, IsPlainAndAsksNobody, 2) {
  for (const bool tracks : {true, false}) {
    auto norm = make_norm(world, Options(channels).track_running_stats(tracks));
    if (tracks) step(norm, WholeBatch({3, 2}, {4}), world);
    norm->eval();
    if (world.rank() == 1) {
      const auto x = random({2, channels, 3}, 5, at::kDouble);
      const auto expected = at::batch_norm(x, norm->weight, norm->bias, norm->running_mean,
                                           norm->running_var, !tracks, 0.1, 1e-5, false);
      EXPECT_TRUE(at::equal(norm(x), expected));
    }
  }
  expect_usable(world);
}

TEST_ON_RANKS(SyncNormModule, HasThePartsOfBatchNorm, 2) {
  const SyncBatchNorm norm(Options(channels).momentum(0.3), world);
  const torch::nn::BatchNorm2d plain(channels);
  EXPECT_EQ(norm->named_parameters().keys(), plain->named_parameters().keys());
  EXPECT_EQ(norm->named_buffers().keys(), plain->named_buffers().keys());
  EXPECT_EQ(detail::concat(*norm),
            "lockstep::SyncBatchNorm(6, eps=1e-05, momentum=0.3, affine=true, "
            "track_running_stats=true, ranks=2)");
  // Usable wherever a module is, and cloned with its group.
  torch::nn::Sequential layers(torch::nn::Linear(2, channels), norm);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(layers->clone());
  copy->forward(at::ones({2, 2}) + world.rank());
  EXPECT_GT(copy->at<SyncBatchNormImpl>(1).running_mean.abs().max().item<double>(), 0);
  EXPECT_EQ(norm->running_mean.abs().max().item<double>(), 0);
  expect_same_bits(copy->at<SyncBatchNormImpl>(1).running_mean, world);
}

TEST_ON_RANKS(SyncNormRefuses, BeforeAnythingIsSent, 2) {
  Arranged all(world, {2, 3});
  const auto said = [&](at::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
    return refusal([&] { all.norm(at::ones(sizes, dtype)); });
  };
  const auto who = detail::concat("SyncBatchNorm rank ", world.rank(), " of 2: got an input of ");
  EXPECT_THAT(said({4, 5, 3}),
              AllOf(HasSubstr(who + "sizes [4, 5, 3]"), HasSubstr("the second of 6 channels")));
  EXPECT_THAT(said({6}), HasSubstr(who + "sizes [6], expected 2 to 5 dimensions"));
  EXPECT_THAT(said({1, 6, 1, 1, 1, 1}), HasSubstr("expected 2 to 5 dimensions"));
  EXPECT_THAT(said({4, 6}, at::kFloat),
              AllOf(HasSubstr(who + "float"), HasSubstr("expected double as running_mean has")));
  EXPECT_THAT(said({4, 6}, at::kLong), HasSubstr("expected a floating point dtype"));
  // On one rank only: nothing was begun there, so the other's layer finds its partner.
  if (world.rank() == 1) {
    EXPECT_NE(said({4, 5}), "");
  }
  expect_part(step(all.norm, all.batch, world), all.whole, all.batch, world, 1e-10);
}

TEST_ON_RANKS(SyncNormRefuses, OneValueAChannelInAllOnEveryRank, 1, 2, 4) {
  auto norm = make_norm(world);
  const auto mine = world.rank() == world.size() - 1 ? 1 : 0;
  const auto x = at::ones({mine, channels, 1}, at::kDouble);
  expect_refused(world, "got one value per channel over all ranks", [&] { norm(x); });
  EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({channels}, at::kDouble)));
}

TEST_ON_RANKS(SyncNormRefuses, InputsOfDifferentDtypesOnEveryRank, 3) {
  auto norm = make_norm(world, Options(channels), world.rank() == 2 ? at::kFloat : at::kDouble);
  expect_refused(world, "inputs of the same dtype: Double on rank 0; Float on rank 2", [&] {
    norm(at::ones({2, channels}, norm->weight.scalar_type()));
  });
}

TEST(SyncNormRefuses, DifferentChannelsByEndingTheWorld) {
  EXPECT_THROW(on_ranks(2,
                        [](const Group& world) {
                          SyncBatchNorm norm(5 + world.rank(), world);
                          norm(at::ones({2, 5 + world.rank()}));
                        }),
               CommError);
}

}  // namespace
}  // namespace lockstep::testing
