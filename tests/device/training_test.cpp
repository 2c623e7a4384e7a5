#include "tests/device/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategy.h"
#include "tests/device/on_devices.h"

// Training on devices, compared with the same training on the CPU in the same world.

namespace lockstep::testing {
namespace {

/// A bucket for every parameter, for the largest number of outstanding collectives.
const BucketCaps one_each{.first = 0, .rest = 0};

std::vector<at::Tensor> trained_by_wrapper(const Group& group, const std::string& strategy,
                                           int steps) {
  auto net = std::make_shared<Net>();
  net->to(group.device());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedDataParallel ddp(net, group,
                              {.buckets = one_each, .strategy = parse_strategy(strategy)});
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    const auto output = ddp(images(group.rank(), step).to(group.device()));
    at::cross_entropy_loss(output, targets(group.rank(), step).to(group.device())).backward();
    sgd.step();
  }
  return values(*net);
}

std::vector<at::Tensor> trained_by_optimizer(const Group& group, const std::string& strategy,
                                             int steps) {
  Net net;
  net.to(group.device());
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedOptimizer optimizer(
      sgd, net, group,
      DataParallelOptions{.buckets = one_each, .strategy = parse_strategy(strategy)});
  for (int step = 0; step < steps; ++step) {
    const auto output = net.forward(images(group.rank(), step).to(group.device()));
    optimizer.backward_and_update(
        at::cross_entropy_loss(output, targets(group.rank(), step).to(group.device())));
  }
  return values(net);
}

class TrainingOnDevices : public OnDevices {
 protected:
  void SetUp() override {
    OnDevices::SetUp();
    if (!IsSkipped()) delay_streams(50);
  }
  void TearDown() override { delay_streams(0); }

  /// Greatest distance from the CPU's parameters. NCCL adds in another order, divides the mean of
  /// more than two ranks by another operation, and adds in the reduced precision.
  double tolerance(const std::string& strategy) const {
    if (on_gpus()) return tolerance_of_gpus(strategy);
    if (backend() == DeviceBackend::staged) return 0;
    if (strategy == "fp16") return 2e-3;
    if (strategy == "bf16") return 2e-2;
    return ranks() > 2 ? 1e-5 : 0;
  }

 private:
  /// A GPU's operators round otherwise than the CPU's.
  static double tolerance_of_gpus(const std::string& strategy) {
    if (strategy == "fp32" || strategy.find("local_sgd") != std::string::npos) return 1e-4;
    if (strategy == "adasum" || strategy.starts_with("partial_update")) return 1e-3;
    // Rounding decides which of two gradients that are almost equal is sent, and to which neighbour
    // a number of fewer bits is rounded.
    return 5e-2;
  }
};

constexpr int steps = 4;

TEST_P(TrainingOnDevices, ByTheWrapperHasTheBitsOfTheCpu) {
  for (const auto* strategy : {"fp32", "fp16", "bf16", "topk:0.2", "threshold:0.01", "int8",
                               "power_sgd:rank=1", "warmup:2:topk:0.2"}) {
    SCOPED_TRACE(strategy);
    run([&](const Group& group) {
      const auto expected = trained_by_wrapper(group.host(), strategy, steps);
      expect_equal(trained_by_wrapper(group, strategy, steps), expected, tolerance(strategy));
    });
  }
}

TEST_P(TrainingOnDevices, ByTheOptimizerHasTheBitsOfTheCpu) {
  for (const auto* strategy : {"fp32", "partial_update", "partial_update:of=gradients",
                               "local_sgd:period=2", "post_local_sgd:start=1,period=2", "adasum"}) {
    SCOPED_TRACE(strategy);
    run([&](const Group& group) {
      const auto expected = trained_by_optimizer(group.host(), strategy, steps);
      expect_equal(trained_by_optimizer(group, strategy, steps), expected, tolerance(strategy));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainingOnDevices,
                         ::testing::Combine(::testing::Values(DeviceBackend::staged,
                                                              DeviceBackend::nccl),
                                            ::testing::Values(1, 2, 3)),
                         name_of);

}  // namespace
}  // namespace lockstep::testing
