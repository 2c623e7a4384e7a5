// Programs that call the own step of an optimizer which a DistributedOptimizer wraps.
#include <limits>

#include "lockstep/grad_scaler.h"
#include "lockstep/strategy.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

TEST_ON_RANKS(OwnStep, IsRefusedOnEveryRankAtTheThirdBackward, 2) {
  std::vector<DataParallelOptions> all;
  for (const auto* strategy : {"local_sgd:period=4", "adasum", "partial_update"})
    all.push_back({.strategy = parse_strategy(strategy)});
  all.push_back({.shard = Shard::optimizer});
  all.push_back({.share_memory = true});
  for (const auto& how : all) {
    SCOPED_TRACE(static_cast<int>(&how - all.data()));
    Terms model(two_shapes);
    torch::optim::Adam adam(model.parameters());
    DistributedOptimizer optimizer(adam, model, world, how);
    const auto step = [&] {
      adam.zero_grad();
      const auto text =
          refusal([&] { model.forward(coefficients(world.rank(), model)).backward(); });
      world.barrier().wait();
      if (text.empty()) adam.step();
      return text;
    };
    for (int i = 0; i < 2; ++i) EXPECT_EQ(step(), "");
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(step(), HasSubstr("got 3 backwards with the wrapped optimizer's own step()"));
      adam.step();
    }
    optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), "");  // some of its steps were made
    optimizer.synchronize();
  }
}

TEST_ON_RANKS(OwnStep, OfOneRankIsRefusedOnEveryRank, 3) {
  Terms model(two_shapes);
  SGD sgd(model.parameters(), SGDOptions(0.1).momentum(0.9));
  DistributedOptimizer optimizer(sgd, model, world, {.verify_every = 0, .shard = Shard::optimizer});
  const auto backward = [&] { model.forward(coefficients(world.rank(), model)).backward(); };
  for (int i = 0; i < 2; ++i) {
    backward();
    if (world.rank() == 1) {
      sgd.step();
    } else {
      sgd.zero_grad();
    }
  }
  EXPECT_THAT(refusal(backward), HasSubstr(world.rank() == 1 ? "on this rank" : "on another rank"));
}

TEST(OwnStep, IsSaidOnceWhereItMayBeNone) {
  if (const auto processes = started_processes(); processes && *processes != 2) return;
  for (const auto* how : {"gradients", "local_sgd:period=100", "fp32"}) {
    SCOPED_TRACE(how);
    ::testing::internal::CaptureStderr();
    on_ranks(2, [&](const Group& world) {
      const bool shards = how == std::string("gradients");
      DataParallelOptions options;
      if (shards) options.shard = Shard::gradients;
      if (!shards) options.strategy = parse_strategy(how);
      OptimizedTerms run(world, options);
      for (int i = 0; i < 12; ++i) {
        run.sgd.zero_grad();
        run.loss().backward();
        run.sgd.step();
      }
    });
    const auto text = ::testing::internal::GetCapturedStderr();
    const std::string said = "got 10 backwards and no step() of the DistributedOptimizer";
    int notices = 0;
    for (auto at = text.find(said); at != text.npos; at = text.find(said, at + 1)) ++notices;
    EXPECT_EQ(notices, how == std::string("fp32") ? 0 : 2) << text;
  }
}

TEST(OwnStep, IsNoneWhereAGradScalerSkipsEveryStep) {
  if (const auto processes = started_processes(); processes && *processes != 2) return;
  ::testing::internal::CaptureStderr();
  on_ranks(2, [&](const Group& world) {
    OptimizedTerms run(world, {.shard = Shard::gradients});
    GradScaler scaler(world);
    for (int i = 0; i < 12; ++i) {
      scaler.scale(run.loss(std::numeric_limits<double>::infinity())).backward();
      EXPECT_FALSE(scaler.step(run.optimizer));
      scaler.update();
      run.optimizer.zero_grad();
    }
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("no step() of")));
}

TEST_ON_RANKS(OwnStep, IsNoneInOtherProgramsThatHaveTakenNoStep, 2) {
  const std::vector<DataParallelOptions> all{{.strategy = parse_strategy("local_sgd:period=4")},
                                             {.strategy = parse_strategy("adasum")},
                                             {.shard = Shard::optimizer}};
  for (const auto& how : all) {
    Terms model(two_shapes);
    torch::optim::Adam adam(model.parameters()), other(model.parameters());
    DistributedOptimizer optimizer(adam, model, world, how);
    for (int i = 0; i < 6; ++i) {
      model.forward(coefficients(world.rank(), model)).backward();
      other.step();  // as an ascent of sharpness-aware training
    }
    optimizer.step();
  }
}

}  // namespace
}  // namespace lockstep::testing
