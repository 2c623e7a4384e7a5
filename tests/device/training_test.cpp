#include "tests/device/training.h"

#include <cstddef>

#include "lockstep/strategies.h"

// Training on devices, compared with the same training on the CPU in the same world.

namespace lockstep::testing {
namespace {

/// A bucket for every parameter, for the largest number of outstanding collectives.
const BucketCaps one_each{.first = 0, .rest = 0};

std::vector<at::Tensor> trained(const Group& group, const std::string& strategy, bool wrapped) {
  auto net = std::make_shared<Net>(group.device());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  DataParallelOptions options{.buckets = one_each, .strategy = parse_strategy(strategy)};
  // An exchange of buffers makes the caller's stream wait, as that of parameters has to by itself.
  if (!wrapped) options.buffer_policy = BufferPolicy::none;
  std::optional<DistributedDataParallel<Net>> ddp;
  std::optional<DistributedOptimizer> optimizer;
  if (wrapped) ddp.emplace(net, group, options);
  if (!wrapped) optimizer.emplace(sgd, *net, group, options);
  const bool weighs = !wrapped && strategy == "fp32";
  for (int step = 0; step < 4; ++step) {
    const auto inputs = inputs_of(group, step);
    if (wrapped) {
      sgd.zero_grad();
      loss_of((*ddp)(inputs), group, step).backward();
      sgd.step();
    } else if (weighs && step < 3) {
      // All ranks but rank 0 run out of batches.
      const bool has_batch = group.rank() == 0 || step < group.rank();
      optimizer->weight(has_batch ? 6 - group.rank() : 0);
      optimizer->backward_and_update(has_batch ? loss_of(net->forward(inputs), group, step)
                                               : at::Tensor());
    } else if (weighs) {
      loss_of(net->forward(inputs), group, step).backward();
      EXPECT_GT(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05), 0.05);
      optimizer->step();
    } else {
      optimizer->backward_and_update(loss_of(net->forward(inputs), group, step));
    }
  }
  if (optimizer) optimizer->synchronize();
  return values(*net);
}

/// Compares training on the device with training on the CPU. On several hosts, a strategy that is
/// more than an all_reduce runs between hosts on the CPU and between ranks on devices. Then only
/// the ranks are compared with each other.
template <class Train>
void compare_on_hosts(const Group& group, const Train& train, bool is_all_reduce,
                      double tolerance) {
  const auto got = train(group);
  const auto hosts = group.host().communicator().hosts();
  const bool has_one_host = std::ranges::all_of(hosts, [&](int host) { return host == hosts[0]; });
  if (has_one_host || is_all_reduce) {
    expect_equal(got, train(group.host()), tolerance);
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

class TrainingOnDevices : public OnDelayedDevices {
 protected:
  void compare(const std::vector<std::string>& strategies, bool wrapped, bool all_reduce) const {
    for (const auto& strategy : strategies) {
      SCOPED_TRACE(strategy);
      run([&](const Group& group) {
        const auto train = [&](const Group& on) { return trained(on, strategy, wrapped); };
        compare_on_hosts(group, train, all_reduce, tolerance(strategy));
      });
    }
  }

 private:
  /// Greatest distance from the CPU's parameters. NCCL adds in another order, divides the mean of
  /// more than two ranks by another operation, and adds in the reduced precision.
  double tolerance(const std::string& strategy) const {
    if (on_gpus()) return tolerance_of_gpus(strategy);
    if (backend() == DeviceBackend::staged) return 0;
    if (strategy == "fp16") return 2e-3;
    if (strategy == "bf16") return 2e-2;
    return ranks() > 2 ? 1e-5 : 0;
  }
  /// A GPU's operators round otherwise than the CPU's.
  static double tolerance_of_gpus(const std::string& strategy) {
    if (strategy == "fp32" || strategy.find("local_sgd") != std::string::npos) return 1e-4;
    if (strategy == "adasum" || strategy.starts_with("partial_update")) return 1e-3;
    // Rounding decides which of two gradients that are almost equal is sent, and to which neighbour
    // a number of fewer bits is rounded.
    return 5e-2;
  }
};

TEST_P(TrainingOnDevices, ByTheWrapperHasTheBitsOfTheCpu) {
  compare({"fp32", "fp16", "bf16"}, true, true);
  compare({"topk:0.2", "threshold:0.01", "int8", "power_sgd:rank=1", "warmup:2:topk:0.2"}, true,
          false);
}

TEST_P(TrainingOnDevices, ByTheOptimizerHasTheBitsOfTheCpu) {
  compare({"fp32", "partial_update", "partial_update:of=gradients", "local_sgd:period=2",
           "post_local_sgd:start=1,period=2"},
          false, true);
  compare({"adasum"}, false, false);
}

TEST_P_ON_DEVICES(TrainingOnDevices, AnOddNumberOfDoublesIsAveragedByTopK) {
  const auto mean = [&](const Group& on) -> std::vector<at::Tensor> {
    Bucket bucket(0, 5, at::kDouble, {}, on);
    bucket.values().copy_(at::arange(5, at::kDouble) * (group.rank() + 1));
    const auto exchange = TopK{.ratio = 0.6}.exchange(bucket);  // three elements
    auto task = exchange->exchange(0, bucket, on);
    while (!task.finished()) task.advance().wait();
    return {bucket.values().cpu()};
  };
  expect_equal(mean(group), mean(group.host()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainingOnDevices,
                         ::testing::Combine(both_backends, ::testing::Values(1, 2, 3)),
                         name_of_case);

}  // namespace
}  // namespace lockstep::testing
