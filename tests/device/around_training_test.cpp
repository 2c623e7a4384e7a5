#include <cmath>

#include "lockstep/efficiency.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/metrics.h"
#include "lockstep/partition.h"
#include "lockstep/run_log.h"
#include "lockstep/samplers.h"
#include "tests/device/training.h"
#include "tests/refusal.h"

// What programs use around the wrappers, with a device group.

namespace lockstep::testing::around_training {
namespace {

class AroundTrainingOnDevices : public ComparedWithCpu {};

at::Tensor loss_of(Net& net, const Group& group, int step) {
  return testing::loss_of(net.forward(inputs_of(group, step)), group, step);
}

/// A metric with a state of its own on the device.
struct Histogram {
  at::Tensor counts;
  at::Tensor value() const { return counts; }
  void combine(MetricCombiner& combiner) { combiner.sum(counts); }
};

TEST_P_ON_DEVICES(AroundTrainingOnDevices, MetricsTakeTensorsOfTheDevice) {
  const auto results = [&](const Group& of) {
    const auto device = of.device();
    Tally tally(3);
    Mean mean;
    Sum sum;
    Histogram histogram{at::zeros({3}, at::TensorOptions(device).dtype(at::kLong))};
    for (int step = 0; step < 3; ++step) {
      const auto outputs = inputs_of(of, step).flatten(1).narrow(1, 0, 10).contiguous();
      tally.add(outputs.mean(), outputs, targets(of.rank(), step).to(device));
      mean.add(outputs, 2.0);
      mean.add(outputs, outputs.abs());
      sum.add(outputs.to(at::kHalf));
      sum.add(targets(of.rank(), step).to(device));
      histogram.counts[step] += of.rank() + 1;
    }
    const auto [score, average, total, counts] = compute(of, tally, mean, sum, histogram);
    EXPECT_EQ(counts.device(), device);
    return std::vector<at::Tensor>{at::tensor({score.loss, score.accuracy, score.top,
                                               static_cast<double>(score.samples), average, total},
                                              at::kDouble),
                                   counts.cpu()};
  };
  const auto expected = results(group.host());
  EXPECT_EQ(expected[0][3].item<double>(), 18 * group.size());
  expect_equal(results(group), expected, on_gpus() ? 1e-4 : 0);
  EXPECT_GT(throughput(5, 2.0, group), 0);
}

TEST_P(AroundTrainingOnDevices, ATallyWaitsForTheDeviceWhenItIsRead) {
  if (on_gpus()) GTEST_SKIP() << "counts the waits of the simulated device";
  run([&](const Group& group) {
    const auto outputs = at::eye(10, at::TensorOptions(group.device()));
    const auto correct = at::arange(10, at::TensorOptions(group.device()).dtype(at::kLong));
    const auto wrong = correct.roll(1);
    const auto loss = outputs.mean();
    Tally tally;
    const auto waits = [&, before = simulation::counts(group.rank())] {
      return (simulation::counts(group.rank()) - before).host_synchronisations;
    };
    for (int batch = 0; batch < 200; ++batch)
      tally.add(loss, outputs, batch % 4 == 0 ? wrong : correct);
    EXPECT_EQ(waits(), 0);
    EXPECT_EQ(tally.score().accuracy, 0.75);
    EXPECT_EQ(waits(), 1);
    const auto score = tally.score(group);
    EXPECT_EQ(score.samples, 2000 * group.size());
    EXPECT_NEAR(score.loss, 0.1, 1e-7);
  });
}

TEST_P(AroundTrainingOnDevices, IntervalsAndEfficiencyAreMeasured) {
  const auto folder = folder_of_ranks();
  run([&](const Group& group) {
    RunLog log(group, {.folder = (folder / "log").string(), .trace = true});
    auto values = at::ones({16}, group.device());
    const auto together = [&] { group.all_reduce(values, ReduceOp::avg).wait(); };
    for (int step = 0; step < 4; ++step) {
      if (step % 2 == 0) log.begin_interval(step);
      together();
      log.scalars(step + 1, {{"loss", 1.0}});
      if (step % 2 == 1) log.end_interval(step + 1, 6);
    }
    log.close();
    EXPECT_EQ(log.lost(), "");
    const auto efficiency = measure_efficiency(group, [&] { values.mul_(1); }, together,
                                               {.rounds = 2, .time = std::chrono::milliseconds(1)});
    EXPECT_EQ(efficiency.rounds, 2);
    EXPECT_GT(efficiency.together, 0);
    EXPECT_TRUE(std::isfinite(efficiency.median));
    if (group.rank() != 0) return;
    std::ifstream intervals(folder / "log" / "intervals.jsonl");
    int lines = 0;
    for (std::string line; std::getline(intervals, line);) ++lines;
    EXPECT_EQ(lines, 2);
    EXPECT_TRUE(std::filesystem::exists(folder / "log" / "trace.json"));
  });
}

/// Its samples are rows of their indices.
struct Rows : torch::data::datasets::BatchDataset<Rows, torch::data::Example<>> {
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override {
    std::vector<std::int64_t> rows(indices.begin(), indices.end());
    const auto data = at::tensor(rows, at::kLong);
    return {data.to(at::kFloat).unsqueeze(1).expand({-1, 3}).contiguous(), data};
  }
  std::optional<std::size_t> size() const override { return 11; }
};

TEST_P_ON_DEVICES(AroundTrainingOnDevices, DatasetsArePartitionedAndScattered) {
  auto part = partition_dataset(Rows(), group);
  const auto expected = partition_dataset(Rows(), group.host());
  EXPECT_EQ(part.range(), expected.range());
  DistributedSampler sampler(11, group);
  DistributedSampler same(11, group.host());
  sampler.reset();
  same.reset();
  EXPECT_EQ(sampler.next(4), same.next(4));

  std::vector<torch::data::Example<>> batches;
  for (const std::size_t first : {0, 6}) {
    auto batch = Rows().get_batch(
        std::vector<std::size_t>{first, first + 1, first + 2, first + 3, first + 4});
    // Batches of the device are scattered, too.
    if (first > 0) batch = {batch.data.to(group.device()), batch.target.to(group.device())};
    batches.push_back(batch);
  }
  std::vector<at::Tensor> rows;
  for (auto& batch : scatter_from_rank0(&batches, group)) {
    EXPECT_TRUE(batch.target.is_cpu());
    EXPECT_EQ(batch.data.size(0), batch.target.size(0));
    rows.push_back(batch.target);
  }
  ASSERT_EQ(rows.size(), 2U);
  const auto begin = 5 * group.rank() / group.size();
  const auto end = 5 * (group.rank() + 1) / group.size();
  EXPECT_TRUE(rows[0].equal(at::arange(begin, end, at::kLong)));
  EXPECT_TRUE(rows[1].equal(at::arange(6 + begin, 6 + end, at::kLong)));
}

TEST_P_ON_DEVICES(AroundTrainingOnDevices, TheConsistencyCheckFindsADifferingParameter) {
  auto net = std::make_shared<Net>(group.device());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  DistributedDataParallel ddp(net, group, {.verify_every = 1});
  const auto train = [&](int step) {
    sgd.zero_grad();
    testing::loss_of(ddp(inputs_of(group, step)), group, step).backward();
    sgd.step();
  };
  train(0);
  {
    const torch::NoGradGuard no_grad;
    if (group.rank() == 1) net->last->bias.add_(1e-3);
  }
  const auto error = thrown_by<ReplicaError>([&] { train(1); });
  EXPECT_THAT(error.what(), HasSubstr("parameter last.bias"));
  EXPECT_EQ(error.rank(), 1);
}

/// The values after some steps, and the kernels of the last update.
template <class Optimizer, class Options>
std::pair<std::vector<at::Tensor>, std::int64_t> trained_by(const Group& group, Options options) {
  Net net(group.device());
  Optimizer base(net.parameters(), options.weight_decay(1e-3));
  DistributedOptimizer optimizer(base, net, group, DataParallelOptions{.verify_every = 0});
  std::int64_t kernels = 0;  // of GPUs they are not counted
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(net, group, step).backward();
    const auto before = simulation::counts(group.rank());
    optimizer.step();
    kernels = static_cast<std::int64_t>((simulation::counts(group.rank()) - before).kernels);
  }
  return {values(net), kernels};
}

TEST_P(AroundTrainingOnDevices, FusedOptimizersHaveTheBitsOfTheCpuInFewKernels) {
  if (backend() == DeviceBackend::nccl) GTEST_SKIP() << "the mean is rounded in another way";
  run([&](const Group& group) {
    const auto check = [&]<class Optimizer>(std::type_identity<Optimizer>, const auto& options,
                                            std::int64_t most, double of_gpus) {
      const auto [got, kernels] = trained_by<Optimizer>(group, options);
      expect_equal(got, trained_by<Optimizer>(group.host(), options).first, tolerance(0, of_gpus));
      EXPECT_LE(kernels, most);
    };
    // The update, and a copy of the buffers of each dtype.
    check(std::type_identity<FusedSgd>(), torch::optim::SGDOptions(0.1).momentum(0.9), 3, 1e-4);
    // Adam's count of updates takes one more. Rounding alone decides the sign of its updates, of
    // the learning rate each, for the bias before a batch norm, whose gradient is zero.
    check(std::type_identity<FusedAdam>(), torch::optim::AdamOptions(0.01), 4, 0.07);
    check(std::type_identity<FusedAdamW>(), torch::optim::AdamWOptions(0.01), 4, 0.07);
  });
}

TEST_P_ON_DEVICES(AroundTrainingOnDevices, SharedMemoryIsRefused) {
  Net net(group.device());
  FusedSgd sgd(net.parameters(), torch::optim::SGDOptions(0.1));
  expect_refused(group, "share_memory: got a group of ", [&] {
    DistributedOptimizer(sgd, net, group, DataParallelOptions{.share_memory = true});
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, AroundTrainingOnDevices,
                         ::testing::Combine(both_backends, ::testing::Values(2, 3)), name_of_case);

}  // namespace
}  // namespace lockstep::testing::around_training
