#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/strategy.h"
#include "tests/device/training.h"

// The caching allocator of CUDA under Lockstep's streams: the memory that training keeps.

namespace lockstep::testing {
namespace {

class MemoryOfTraining : public OnDevices {};

std::int64_t bytes_in_use(const at::Device& device, bool reserved) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return (reserved ? stats.reserved_bytes : stats.allocated_bytes)[0].current;
}

// Without record_stream(), an operation keeps its tensors. It must let go of them, too.
TEST_P(MemoryOfTraining, DoesNotGrowAndIsReturned) {
  for (const auto* strategy : {"fp32", "fp16", "topk:0.2", "power_sgd:rank=1"}) {
    SCOPED_TRACE(strategy);
    run([&](const Group& group) {
      const auto before = bytes_in_use(group.device(), false);
      std::vector<std::int64_t> reserved;
      {
        auto net = std::make_shared<Net>(group.device());
        torch::optim::SGD sgd(net->parameters(), 0.1);
        DistributedDataParallel ddp(net, group, {.strategy = parse_strategy(strategy)});
        for (int step = 0; step < 12; ++step) {
          sgd.zero_grad();
          const auto output = ddp(images(group.rank(), step).to(group.device()));
          at::cross_entropy_loss(output, targets(group.rank(), step).to(group.device())).backward();
          sgd.step();
          c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(group.device().index());
          reserved.push_back(bytes_in_use(group.device(), true));
        }
        group.barrier().wait();
      }
      EXPECT_EQ(reserved.back(), reserved[5]);
      group.host().barrier().wait();
      simulation::synchronize_all();
      c10::cuda::CUDACachingAllocator::emptyCache();
      EXPECT_EQ(bytes_in_use(group.device(), false), before);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MemoryOfTraining,
                         ::testing::Combine(both_backends, ::testing::Values(1, 2)), name_of_case);

}  // namespace
}  // namespace lockstep::testing
