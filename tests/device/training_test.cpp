#include "tests/device/training.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "comm/communicator.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategy.h"

// Training on devices, compared with the same training on the CPU in the same world.

namespace lockstep::testing {
namespace {

/// A bucket for every parameter, for the largest number of outstanding collectives.
const BucketCaps one_each{.first = 0, .rest = 0};

std::vector<at::Tensor> trained_by_wrapper(const Group& group, const std::string& strategy,
                                           int steps) {
  auto net = std::make_shared<Net>(group.device());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedDataParallel ddp(net, group,
                              {.buckets = one_each, .strategy = parse_strategy(strategy)});
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    loss_of(ddp(inputs_of(group, step)), group, step).backward();
    sgd.step();
  }
  return values(*net);
}

std::vector<at::Tensor> trained_by_optimizer(const Group& group, const std::string& strategy,
                                             int steps) {
  Net net(group.device());
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DistributedOptimizer optimizer(
      sgd, net, group,
      DataParallelOptions{.buckets = one_each, .strategy = parse_strategy(strategy)});
  for (int step = 0; step < steps; ++step) {
    optimizer.backward_and_update(loss_of(net.forward(inputs_of(group, step)), group, step));
  }
  return values(net);
}

class TrainingOnDevices : public OnDelayedDevices {
 protected:
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

/// Compares training on the device with training on the CPU. On several hosts, a strategy that is
/// more than an all_reduce runs between hosts on the CPU and between ranks on devices. Then only
/// the ranks are compared with each other.
template <class Train>
void compare(const Group& group, const Train& trained, bool is_all_reduce, double tolerance) {
  const auto got = trained(group);
  const auto hosts = group.host().communicator().hosts();
  const bool has_one_host = std::ranges::all_of(hosts, [&](int host) { return host == hosts[0]; });
  if (has_one_host || is_all_reduce) {
    expect_equal(got, trained(group.host()), tolerance);
    return;
  }
  // Batch norm's running statistics are those of each rank's data.
  const auto parameters = Net().parameters().size();
  std::vector<at::Tensor> own(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(parameters));
  std::vector<at::Tensor> of_rank0;
  for (const auto& tensor : own) {
    of_rank0.push_back(tensor.clone());
    group.host().broadcast(of_rank0.back()).wait();
  }
  expect_equal(own, of_rank0, 0);
}

TEST_P(TrainingOnDevices, ByTheWrapperHasTheBitsOfTheCpu) {
  for (const auto* strategy : {"fp32", "fp16", "bf16", "topk:0.2", "threshold:0.01", "int8",
                               "power_sgd:rank=1", "warmup:2:topk:0.2"}) {
    SCOPED_TRACE(strategy);
    run([&](const Group& group) {
      const std::string text = strategy;
      const bool is_all_reduce = text == "fp32" || text == "fp16" || text == "bf16";
      compare(
          group, [&](const Group& on) { return trained_by_wrapper(on, strategy, steps); },
          is_all_reduce, tolerance(strategy));
    });
  }
}

TEST_P(TrainingOnDevices, ByTheOptimizerHasTheBitsOfTheCpu) {
  for (const auto* strategy : {"fp32", "partial_update", "partial_update:of=gradients",
                               "local_sgd:period=2", "post_local_sgd:start=1,period=2", "adasum"}) {
    SCOPED_TRACE(strategy);
    run([&](const Group& group) {
      compare(
          group, [&](const Group& on) { return trained_by_optimizer(on, strategy, steps); },
          std::string(strategy) != "adasum", tolerance(strategy));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainingOnDevices,
                         ::testing::Combine(both_backends, ::testing::Values(1, 2, 3)),
                         name_of_case);

}  // namespace
}  // namespace lockstep::testing
