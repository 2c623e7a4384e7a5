// Averaged gradients that are divided among the ranks (Shard::gradients).
#include <limits>

#include "lockstep/grad_scaler.h"
#include "parallel/update/sharded_parameters.h"
#include "tests/parallel/trainings.h"
#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"

namespace lockstep::testing {
namespace {

using torch::optim::SGDOptions;

const DataParallelOptions in_shards{.shard = Shard::gradients};

SUITE_ON_RANKS(ShardedGradients, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(ShardedGradients, TakeTheStepsOfWholeOnes) {
  for (std::size_t i = 0; i < every_optimizer.size(); ++i) {
    const auto& [name, make] = every_optimizer[i];
    SCOPED_TRACE(name);
    // A bucket for each parameter, so that buckets use their memory in turn.
    auto how = i % 2 == 0 ? one_each : DataParallelOptions{};
    Trained whole(world, make, how);
    how.shard = Shard::gradients;
    Trained in_parts(world, make, how);
    for (const int step : {0, 2, 4, 6, 7, 9, 11, 13, 14}) {
      in_parts.step(world, step);
      whole.step(world, step);
      expect_equal_models(in_parts.model, whole.model);
    }
  }
}

TEST_P_ON_RANKS(ShardedGradients, ExistInPartsOnly) {
  TwoTrainings pair(world);
  pair.backward(world, 0);
  std::int64_t elements = 0;
  for (const auto& part : detail::ShardedParameters::of(pair.adam)->gradients())
    elements += part.numel();
  for (const auto& parameter : pair.parts.parameters()) EXPECT_FALSE(parameter.grad().defined());
  expect_parts(world, elements, pair.parts);
  pair.in_parts->zero_grad();
  EXPECT_TRUE(detail::ShardedParameters::of(pair.adam)->gradients().empty());
  const auto before = pair.parts.parameters()[0].detach().clone();
  pair.in_parts->step();  // without gradients
  EXPECT_TRUE(torch::equal(before, pair.parts.parameters()[0]));
}

/// As in one process: an optimizer updates a parameter whose gradient is zero, and leaves one
/// without a gradient.
TEST_P_ON_RANKS(ShardedGradients, BecomeZeroByZeroGradWithoutNone) {
  TwoTrainings pair(world);
  for (int step = 0; step < 8; ++step) {
    for (auto* optimizer : {pair.in_parts.get(), pair.in_whole.get()})
      optimizer->zero_grad(step == 5);
    if (step == 4) {
      pair.backward(world, step);
      for (auto* optimizer : {pair.in_parts.get(), pair.in_whole.get()})
        optimizer->zero_grad(false);
    } else if (step % 2 == 0) {
      pair.backward(world, step);
    } else if (step != 3) {
      const auto seed = static_cast<std::uint64_t>(100 * step + world.rank());
      for (auto* model : {&pair.parts, &pair.whole})
        model->layers[0]->forward(random({4, 7}, seed)).square().mean().backward();
    }
    for (auto* optimizer : {pair.in_parts.get(), pair.in_whole.get()}) optimizer->step();
    expect_equal_models(pair.parts, pair.whole);
  }
}

TEST_P_ON_RANKS(ShardedGradients, AddTheMeansOfSeveralBackwards) {
  TwoTrainings pair(world, in_shards, at::kDouble);
  for (int step = 0; step < 3; ++step) {
    pair.backward(world, 3 * step);
    pair.backward(world, 3 * step + 1);
    pair.backward(world, 3 * step + 2);
    pair.finish();
  }
  expect_near_models(pair.parts, pair.whole, 1e-12);
}

/// Sets the gradients of p0 and p1 on some ranks, to other values on each. Those of rank 0 are
/// zero.
void set_gradients(OptimizedTerms& one, bool everywhere) {
  const int rank = one.group.rank();
  if (!everywhere && rank % 2 != 0) return;
  for (const std::size_t i : {0, 1})
    one.model.p[i].mutable_grad() = at::full_like(one.model.p[i], 100 * rank);
}

TEST_P_ON_RANKS(ShardedGradients, LoseAMeanToAGradientThatTheProgramSets) {
  for (int variant = 0; variant < 1 << 6; ++variant) {
    SCOPED_TRACE(variant);
    const auto is = [variant](int bit) { return (variant >> bit & 1) != 0; };
    const DataParallelOptions how{.buckets = is(0) ? one_each.buckets : BucketCaps{}};
    auto divided = how;
    divided.shard = Shard::gradients;
    OptimizedTerms parts(world, divided, some_shapes), whole(world, how, some_shapes);
    for (auto* one : {&parts, &whole}) {
      one->loss(3).backward();
      if (is(1)) one->accumulate(5);
      set_gradients(*one, is(2));
      auto terms = coefficients(world.rank(), one->model);
      terms[0] = is(3) ? terms[0] : at::Tensor();
      terms[1] = world.rank() == 0 ? terms[1] : at::Tensor();
      if (is(4)) one->accumulate(7);
      if (is(5)) one->optimizer.weight(world.rank() + 1);
      one->model.forward(terms).backward();
      one->optimizer.step();
    }
    for (std::size_t i = 0; i < some_shapes.size(); ++i)
      EXPECT_TRUE(near(parts.model.p[i].detach(), whole.model.p[i].detach())) << i;
  }
}

TEST_P_ON_RANKS(ShardedGradients, AreClippedByTheirCommonNorm) {
  for (const double type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (const auto& how : every_update) {
      TwoTrainings pair(world, how, at::kDouble);
      for (int step = 0; step < 3; ++step) {
        pair.backward(world, step);
        const double norm = clip_grad_norm(*pair.in_parts, 0.05, type);
        const double expected =
            torch::nn::utils::clip_grad_norm_(pair.whole.parameters(), 0.05, type);
        EXPECT_NEAR(norm, expected, 1e-12 * expected);
        EXPECT_GT(norm, 0.05);
        auto largest = torch::tensor(norm, at::kDouble);
        world.all_reduce(largest, ReduceOp::max).wait();
        EXPECT_EQ(largest.item<double>(), norm);
        pair.finish();
      }
      world.barrier().wait();  // ranks may share the parameters
      expect_near_models(pair.parts, pair.whole, 1e-12);
      world.barrier().wait();
    }
  }
}

TEST_P_ON_RANKS(ShardedGradients, AreScaledAndSkippedTogether) {
  for (const auto& how : every_update) {
    TwoTrainings pair(world, how);
    GradScaler scaler(world, {.init_scale = 1024}), of_whole(world, {.init_scale = 1024});
    for (int step = 0; step < 6; ++step) {
      for (auto* model : {&pair.parts, &pair.whole}) {
        auto loss = TwoTrainings::loss(*model, world, step);
        // In step 2, one rank's gradient of one element is infinite.
        if (step == 2 && world.rank() == world.size() - 1)
          loss = loss + model->layers[0]->bias[5] * std::numeric_limits<double>::infinity();
        (model == &pair.parts ? scaler : of_whole).scale(loss).backward();
      }
      if (step == 4) {
        scaler.unscale_(*pair.in_parts);
        of_whole.unscale_(*pair.in_whole);
        clip_grad_norm(*pair.in_parts, 1e9);
      }
      EXPECT_EQ(scaler.step(*pair.in_parts), step != 2);
      EXPECT_EQ(of_whole.step(*pair.in_whole), step != 2);
      for (auto* each : {&scaler, &of_whole}) each->update();
      pair.adam.zero_grad();
      pair.adam_of_whole.zero_grad();
      EXPECT_EQ(scaler.get_scale(), step < 2 ? 1024 : 512);
      expect_equal_replicas(world, pair.parts, pair.whole);
    }
  }
}

TEST_P_ON_RANKS(ShardedGradients, AreSentInReducedPrecision) {
  for (const char* text : {"fp16", "bf16", "fp16:clip=0.01", "fp16:predivide=off"})
    expect_equal_trainings(world, text, Shard::gradients);
}

TEST_ON_RANKS(ShardedGradientsStart, RefuseStrategiesWithoutParts, 2) {
  Mlp model;
  torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
  for (const char* text : {"topk:0.1", "int8", "power_sgd"}) {
    const DataParallelOptions how{.strategy = parse_strategy(text), .shard = Shard::gradients};
    expect_refused(world, "with Shard::gradients, expected fp32, fp16 or bf16",
                   [&] { DistributedOptimizer(sgd, model, world, how); });
  }
}

TEST_ON_RANKS(ShardedGradientsStep, RefusesWhatItCannotClip, 2) {
  TwoTrainings pair(world);
  pair.backward(world, 0);
  EXPECT_THAT(refusal([&] { clip_grad_norm(*pair.in_parts, -1); }), HasSubstr("max_norm = -1"));
  EXPECT_THAT(refusal([&] { clip_grad_norm(*pair.in_parts, 1, 0.5); }),
              HasSubstr("norm_type = 0.5"));
  Mlp model;
  torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
  DistributedOptimizer local(sgd, model, world, parse_strategy("local_sgd:period=4"));
  expect_refused(world,
                 "such as fp32; or clip this rank's own by torch::nn::utils::clip_grad_norm_()",
                 [&] { clip_grad_norm(local, 1); });
}

TEST_ON_RANKS(ShardedGradientsStep, UsesAGradientThatTheProgramSetsAlsoInPlaceOfTheMean, 2, 3) {
  for (const bool has_mean : {false, true}) {
    TwoTrainings pair(world, in_shards, at::kDouble);
    if (has_mean) pair.backward(world, 0);
    for (auto* model : {&pair.parts, &pair.whole})
      model->layers[0]->weight.mutable_grad() = at::full_like(model->layers[0]->weight, 0.25);
    if (has_mean) {
      const double norm = clip_grad_norm(*pair.in_parts, 0.05);
      const double expected = torch::nn::utils::clip_grad_norm_(pair.whole.parameters(), 0.05);
      EXPECT_NEAR(norm, expected, 1e-12 * expected);
    }
    pair.finish();
    expect_near_models(pair.parts, pair.whole, 1e-12);
  }
}

TEST_ON_RANKS(ShardedGradientsStep, AveragesAGradientThatTheProgramSetsWithThoseOfOtherRanks, 3) {
  for (auto how : {DataParallelOptions{}, one_each}) {
    how.shard = Shard::gradients;
    TwoTrainings pair(world, how);
    for (auto* model : {&pair.parts, &pair.whole}) {
      auto& layer = *model->layers[0];
      layer.weight.mutable_grad() = at::full_like(layer.weight, 0.25);
      auto loss = layer.bias.sum();
      if (world.rank() > 0) loss = loss + layer.weight.square().sum();
      loss.backward();
    }
    pair.finish();
    expect_equal_models(pair.parts, pair.whole);
  }
}

TEST_ON_RANKS(ShardedGradientsStep, UsesAGradientThatIsSetAfterARankHasJoined, 3) {
  for (const bool everywhere : {false, true}) {
    OptimizedTerms parts(world, in_shards), whole(world);
    for (auto* one : {&parts, &whole}) {
      if (world.rank() != 1) {  // the rank without a loss
        one->loss().backward();
        if (everywhere || world.rank() == 2) set_gradients(*one, true);
      }
      one->optimizer.step();
    }
    for (const std::size_t i : {0, 1})
      EXPECT_TRUE(near(parts.model.p[i].detach(), whole.model.p[i].detach())) << i;
  }
}

TEST(ShardedTrainingBetweenHosts, EqualsTheUnshardedTraining) {
  for (const auto& hosts : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 1}}) {
    on_ranks(static_cast<int>(hosts.size()), [&](const Group& ranks) {
      const auto world = on_hosts(ranks, hosts);
      for (const auto shard : {Shard::gradients, Shard::optimizer}) {
        TwoTrainings pair(world, {.buckets = {.first = 1 << 10, .rest = 2 << 10}, .shard = shard},
                          at::kDouble);
        for (int step = 0; step < 5; ++step) pair.update(world, step);
        expect_near_models(pair.parts, pair.whole, 1e-12);
      }
      TwoTrainings rounded(world, {.strategy = Fp16{}, .shard = Shard::gradients});
      for (int step = 0; step < 5; ++step) rounded.update(world, step);
      expect_near_models(rounded.parts, rounded.whole, 1e-2);
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
