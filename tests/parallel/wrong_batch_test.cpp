// Ranks whose samplers are at different batches.
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>

#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "lockstep/uneven_inputs.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

constexpr std::size_t samples = 24;

/// Runs fn on the ranks. Expects warnings of rank 0 on stderr, and returns what it writes; nothing
/// in a process of another rank.
std::string expect_warnings(int count, int ranks, const std::function<void(const Group&)>& fn,
                            const std::string& start = "lockstep: DistributedSampler") {
  ::testing::internal::CaptureStderr();
  on_ranks(ranks, fn);
  const auto text = ::testing::internal::GetCapturedStderr();
  const auto processes = started_processes();
  if (processes && (*processes != ranks || world_of_processes().rank() != 0)) return "";
  int found = 0;
  for (std::size_t at = 0; (at = text.find(start, at)) != text.npos; ++at) ++found;
  EXPECT_EQ(found, count) << text;
  return text;
}

/// The text is that of another rank's process, or has the part.
void expect_part(const std::string& text, const std::string& part) {
  EXPECT_TRUE(text.empty() || text.find(part) != text.npos) << text;
}

struct Stepper : OptimizedTerms {
  using OptimizedTerms::OptimizedTerms;
  void operator()() { optimizer.backward_and_update(loss()); }
};

/// Two epochs over batches of two samples. Rank 1 skips that batch of the first, or none: 0.
void train(const Group& world, const DataParallelOptions& options, int skipped) {
  DistributedSampler sampler(samples, world);
  Stepper step(world, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.reset();
    for (int batch = 1; sampler.next(2); ++batch) {
      if (world.rank() == 1 && epoch == 0 && batch == skipped) continue;
      step();
    }
    // The rank that has skipped a batch has a step less.
    if (world.rank() == 1 && epoch == 0 && skipped > 0) step();
  }
}

TEST(WrongBatch, IsNamedOnceByRankAndPosition) {
  for (const int ranks : {2, 3}) {
    const auto text = expect_warnings(1, ranks, [](const Group& world) { train(world, {}, 3); });
    expect_part(text,
                detail::concat("lockstep: DistributedSampler rank 0 of ", ranks,
                               ": got epoch 0 batch 3 on rank", ranks == 2 ? " 0" : "s 0, 2",
                               "; epoch 0 batch 4 on rank 1 in one exchange, expected the same"));
    expect_warnings(0, ranks, [](const Group& world) { train(world, {}, 0); });
  }
}

TEST(WrongBatch, IsNamedWithEveryStrategyAndWithSharedMemory) {
  for (const char* text : {"fp32", "bf16", "topk:0.1", "adasum", "partial_update",
                           "partial_update:of=gradients", "local_sgd:period=2"}) {
    SCOPED_TRACE(text);
    const DataParallelOptions options{.strategy = parse_strategy(text)};
    expect_warnings(1, 3, [&](const Group& world) { train(world, options, 2); });
    expect_warnings(0, 3, [&](const Group& world) { train(world, options, 0); });
  }
  expect_warnings(1, 2, [](const Group& world) { train(world, {.share_memory = true}, 2); });
}

/// One pass of a loader, in which rank 1 may skip the third batch.
template <class Loader>
void train_with(Loader& loader, const Group& world, bool skips) {
  Stepper step(world);
  int batch = 0;
  for ([[maybe_unused]] auto& each : loader) {
    if (++batch == 3 && skips && world.rank() == 1) continue;
    step();
  }
  if (skips && world.rank() == 1) step();
}

// LibTorch's loader draws ahead of the program, so that skips among an epoch's last batches are not
// seen. PrefetchLoader counts the batches that the program has got.
TEST(WrongBatch, OfALoaderIsThatOfTheProgram) {
  const torch::data::datasets::TensorDataset data(at::arange(static_cast<int>(2 * samples)));
  for (const int skips : {0, 1}) {
    for (const std::size_t workers : {0, 2}) {
      const auto text = expect_warnings(skips, 2, [&](const Group& world) {
        // The ranks need not have the same number of threads.
        const auto own_workers = workers + (world.rank() == 1 && workers > 0 ? 1 : 0);
        PrefetchLoader loader(data, DistributedSampler(2 * samples, world),
                              {.batch_size = 2, .workers = own_workers});
        train_with(loader, world, skips != 0);
      });
      if (skips != 0) expect_part(text, "batch 3 on rank 0; epoch 0 batch 4 on rank 1");
      expect_warnings(skips, 2, [&](const Group& world) {
        auto loader =
            torch::data::make_data_loader(data, DistributedSampler(2 * samples, world),
                                          torch::data::DataLoaderOptions(2).workers(workers));
        train_with(*loader, world, skips != 0);
      });
    }
  }
}

// Ranks that have no batch left take part with weight 0.
TEST(WrongBatch, IsNoneOfRanksThatHaveRunOut) {
  expect_warnings(0, 3, [](const Group& world) {
    const std::vector<int> data(static_cast<std::size_t>(3 + 2 * world.rank()));
    DistributedSampler sampler(samples, world);
    Stepper step(world);
    for (const auto& batch : join_uneven(data, world, until_last)) {
      if (batch) sampler.next(1);
      step.optimizer.weight(batch ? 1 : 0);
      step();
    }
  });
}

TEST(WrongBatch, IsThatOfTheSamplerThatAdvancedLast) {
  const auto run = [](const Group& world, bool skips) {
    DistributedSampler train_sampler(samples, world), test_sampler(3, world);
    const DistributedSampler of_no_group(samples, ShardSpec{});
    Stepper step(world);
    for (int batch = 0; batch < 6; ++batch) {
      // A rank that evaluates more often than others is no rank that has skipped a batch.
      if (batch == 2 || world.rank() == 0) {
        test_sampler.reset();
        while (test_sampler.next(1)) continue;
      }
      train_sampler.next(1);
      if (batch == 4 && world.rank() == 1 && skips) train_sampler.next(1);
      step();
    }
  };
  expect_warnings(0, 2, [&](const Group& world) { run(world, false); });
  expect_part(expect_warnings(1, 2, [&](const Group& world) { run(world, true); }),
              "got epoch 0 batch 5 on rank 0; epoch 0 batch 6 on rank 1");
}

TEST(WrongBatch, IsNamedOnceByEachWrapperAndAtASecondExchangeOfABatchNever) {
  expect_warnings(2, 2, [](const Group& world) {
    auto generator = make_terms(some_shapes), critic = make_terms(some_shapes);
    DistributedDataParallel ddp_generator(generator, world), ddp_critic(critic, world);
    DistributedSampler sampler(samples, world);
    for (int batch = 0; batch < 5; ++batch) {
      sampler.next(1);
      if (batch == 3 && world.rank() == 1) sampler.next(1);
      const auto own = coefficients(world.rank(), *generator);
      ddp_critic(own).backward();
      ddp_critic(own).backward();
      ddp_generator(own).backward();
    }
  });
}

/// The warnings of rank 0 in a program of a wrapper.
void expect_unused_forwards(int count,
                            const std::function<void(DistributedDataParallel<Terms>&,
                                                     const std::vector<at::Tensor>&)>& fn) {
  expect_warnings(
      count, 2,
      [&](const Group& world) {
        auto model = make_terms(some_shapes);
        DistributedDataParallel ddp(model, world);
        fn(ddp, coefficients(world.rank(), *model));
      },
      "lockstep: DistributedDataParallel rank 0 of 2: got a forward with gradients that no");
}

TEST(UnusedForward, IsNamedOnceAtTheNextForward) {
  expect_unused_forwards(0, [](auto& ddp, const auto& terms) { ddp(terms); });
  expect_unused_forwards(1, [](auto& ddp, const auto& terms) {
    for (int step = 0; step < 5; ++step) {
      const auto loss = ddp(terms);
      if (step % 2 == 0) loss.backward();
    }
  });
}

TEST(UnusedForward, IsNoneWithoutGradientsOrWithABackwardThatComesLater) {
  expect_unused_forwards(0, [](auto& ddp, const auto& terms) {
    for (int step = 0; step < 2; ++step) {
      {
        const at::NoGradGuard no_grad;
        ddp(terms);
      }
      const auto first = ddp(terms), second = ddp(terms);
      first.backward({}, /*retain_graph=*/true);
      (second + first).backward();
      without_sync(ddp, [&] { ddp(terms).backward(); });
      torch::autograd::grad({ddp(terms)}, {ddp.module()->p[0]});
      EXPECT_THROW(ddp(std::vector<at::Tensor>(terms.size(), at::ones({7, 11}))), c10::Error);
    }
    for (auto& parameter : ddp.module()->p) parameter.requires_grad_(false);
    for (int step = 0; step < 3; ++step) ddp(terms);
  });
}

}  // namespace
}  // namespace lockstep::testing
