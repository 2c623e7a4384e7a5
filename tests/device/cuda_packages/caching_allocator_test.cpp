#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/strategy.h"
#include "tests/device/on_devices.h"
#include "tests/device/training.h"
#include "tests/matchers.h"

// The caching allocator of CUDA under Lockstep's streams: memory that is freed while a stream uses
// it, and the memory that training keeps.

namespace lockstep::testing {
namespace {

constexpr std::int64_t elements = 300'000;

class CachingAllocator : public OnSimulation {
 protected:
  void SetUp() override {
    OnSimulation::SetUp();
    ASSERT_EQ(simulation::device_type(), at::kCUDA);
    c10::cuda::CUDACachingAllocator::emptyCache();
  }
  void TearDown() override { simulation::synchronize_all(); }
  const at::Device device{at::kCUDA, 0};
};

TEST_F(CachingAllocator, GivesMemoryToTheSameStreamAgainAtOnce) {
  auto first = at::ones({elements}, device);
  const void* const at = first.const_data_ptr();
  first.reset();
  const auto second = at::zeros({elements}, device);
  EXPECT_EQ(second.const_data_ptr(), at);
  EXPECT_EQ(second.sum().item<float>(), 0);
  EXPECT_THAT(simulation::take_races(), IsEmpty());
}

TEST_F(CachingAllocator, MemoryThatAnotherStreamUsesIsARaceUnlessItIsRecorded) {
  for (const bool recorded : {true, false}) {
    const c10::Stream side = c10::cuda::getStreamFromPool(false, 0);
    auto tensor = at::ones({elements}, device);
    auto sum = at::zeros({}, device);
    simulation::synchronize_all();
    const void* const at = tensor.const_data_ptr();
    simulation::slow_down(0, 20'000);
    {
      const c10::StreamGuard on(side);
      sum.add_(tensor.sum());
    }
    if (recorded) tensor.record_stream(side);
    tensor.reset();
    const auto next = at::zeros({elements}, device);
    EXPECT_EQ(next.const_data_ptr() == at, !recorded);
    simulation::synchronize_all();
    simulation::slow_down(0, 0);
    const auto races = simulation::take_races();
    if (recorded) {
      EXPECT_THAT(races, IsEmpty());
      EXPECT_EQ(sum.item<float>(), elements);
    } else {
      EXPECT_THAT(races, Contains(HasSubstr("the allocation of memory")));
    }
  }
}

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
