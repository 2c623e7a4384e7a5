#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <sys/resource.h>

#include <cmath>

#include "device/device_communicator.h"
#include "tests/device/training.h"
#include "tests/matchers.h"

// The order of work on streams, the life of memory, and what a step costs the host. The simulated
// device reports an access that no event orders, also where the result happens to be right.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Streams : public OnDelayedDevices {
 protected:
  Streams() : OnDelayedDevices(200) {}
};

// The program may drop a tensor before its collective is complete.
TEST_P_ON_DEVICES(Streams, OperationsKeepTheirTensors) {
  for (int i = 0; i < 20; ++i) {
    auto tensor = at::ones({5000}, group.device());
    auto work = group.all_reduce(tensor);
    tensor.reset();
    const auto other = at::zeros({5000}, group.device()).add_(1);  // may get the same memory
    work.wait();
    EXPECT_EQ(other.sum().item<float>(), 5000);
  }
}

// Inputs and outputs may be made on another stream than that of the collective's caller, a thread
// may have another current device, and a group ends after its operations.
TEST_P_ON_DEVICES(Streams, OperationsAreOrderedWithTheStreamThatIsCurrentAtTheWait) {
  const auto tensor = at::ones({5000}, group.device());
  {
    const c10::DeviceGuard other(device_of((group.device().index() + 1) % device_count()));
    group.all_reduce(tensor).wait();
  }
  {
    const auto part = group.split(0, group.rank());
    part.all_reduce(tensor, ReduceOp::max).wait();
  }
  const auto other = new_stream(group.device());
  auto work = group.all_reduce(tensor, ReduceOp::max);
  order(current_stream(group.device()), other);
  const c10::StreamGuard guard(other);
  work.wait();
  EXPECT_EQ(tensor[17].item<float>(), group.size());
}

/// Two layers whose forward, and so whose backward, is on different streams.
struct Branches : torch::nn::Module {
  explicit Branches(const Group& group) : stream(new_stream(group.device())) {
    register_module("left", left);
    register_module("right", right);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(0.01);
    to(group.device());
    // Autograd accumulates a gradient on the stream on which the accumulator was made.
    const c10::StreamGuard guard(stream);
    for (const auto& parameter : right->parameters()) {
      accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter));
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    const auto main = current_stream(input.device());
    order(main, stream);
    at::Tensor other;
    {
      const c10::StreamGuard guard(stream);
      other = right(input).square();
    }
    const auto own = left(input).square();
    order(stream, main);
    other.record_stream(main);
    return own + other;
  }
  torch::nn::Linear left{torch::nn::Linear(40, 40)};
  torch::nn::Linear right{torch::nn::Linear(40, 40)};
  c10::Stream stream;
  std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))> accumulators;
};

TEST_P_ON_DEVICES(Streams, GradientsOfSeveralStreams) {
  auto model = std::make_shared<Branches>(group);
  DistributedDataParallel ddp(model, group);
  for (int step = 0; step < 4; ++step) {
    model->zero_grad();
    ddp(at::full({8, 40}, group.rank() + 1.0, group.device())).sum().backward();
  }
  // d/dw of (w·x·40 + b)² summed over 8 samples, averaged over ranks.
  double expected = 0;
  for (int rank = 1; rank <= group.size(); ++rank) {
    expected += 8 * 2 * (0.01 * 40 * rank + 0.01) * rank / group.size();
  }
  for (const auto& layer : {model->left, model->right}) {
    EXPECT_NEAR(layer->weight.grad()[3][5].item<double>(), expected, 1e-4 * expected);
  }
}

// Also if the program does not call its groups again.
TEST_P_ON_DEVICES(Streams, CompleteOperationsAreNotPending) {
  group.all_reduce(at::ones({5000}, group.device())).wait();
  auto& ranks = dynamic_cast<device::DeviceCommunicator&>(group.communicator());
  const auto end = Clock::now() + 20s;
  const auto pending = [&] {
    const auto lock = ranks.context().lock();
    return ranks.pending();
  };
  while (pending() > 0 && Clock::now() < end) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(pending(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, Streams,
                         ::testing::Combine(both_backends, ::testing::Values(1, 2, 3)),
                         name_of_case);

/// The simulated device itself: the other tests rely on its reports.
class Simulation : public OnSimulation {};

TEST_F(Simulation, AMissingWaitIsARace) {
  const auto x = at::zeros({1024}, device_of(0));
  simulation::synchronize_all();
  simulation::slow_down(0, 3000);
  x.add_(1);
  {
    const c10::StreamGuard on(new_stream(x.device()));
    (void)x.sum().item<double>();  // the sum may be right all the same
  }
  simulation::slow_down(0, 0);
  simulation::synchronize_all();
  EXPECT_THAT(simulation::take_races(), Contains(HasSubstr("reads memory that aten::add.out")));
}

TEST_F(Simulation, MemoryThatIsFreedTooEarlyIsARace) {
  // CUDA's caching allocator does not release memory, but gives it to the same stream again.
  const bool caches = simulation::device_type() == at::kCUDA;
  constexpr std::int64_t elements = 300'000;
  for (const bool recorded : {true, false}) {
    const auto stream = new_stream(device_of(0));
    auto x = at::ones({elements}, device_of(0));
    const auto sum = at::zeros({}, x.options());
    simulation::synchronize_all();
    const void* const at = x.const_data_ptr();
    simulation::slow_down(0, 20'000);
    {
      const c10::StreamGuard on(stream);
      sum.add_(x.sum());
    }
    if (recorded) x.record_stream(stream);
    x.reset();
    at::Tensor next;
    if (caches) {
      next = at::zeros({elements}, sum.options());
      EXPECT_EQ(next.const_data_ptr() == at, !recorded);
    }
    simulation::synchronize_all();
    simulation::slow_down(0, 0);
    const auto races = simulation::take_races();
    if (recorded) {
      EXPECT_EQ(sum.item<double>(), elements);
      EXPECT_THAT(races, IsEmpty());
    } else {
      EXPECT_TRUE(caches || std::isnan(sum.item<double>()));
      EXPECT_THAT(races, Contains(HasSubstr(caches ? "the allocation of memory"
                                                   : "the release of memory")));
    }
  }
}

class CostOfAStep : public OnSimulation {};

/// What one step costs, after some steps.
simulation::Counts cost_of_step(const std::string& strategy, bool wrapped) {
  simulation::Counts cost;
  on_devices(1, DeviceBackend::nccl, [&](const Group& group) {
    auto model = std::make_shared<torch::nn::SequentialImpl>(
        torch::nn::Linear(20, 30), torch::nn::BatchNorm1d(30), torch::nn::ReLU(),
        torch::nn::Linear(30, 30), torch::nn::ReLU(), torch::nn::Linear(30, 5));
    model->to(group.device());
    std::optional<DistributedDataParallel<torch::nn::SequentialImpl>> ddp;
    if (wrapped)
      ddp.emplace(model, group, DataParallelOptions{.strategy = parse_strategy(strategy)});
    const auto input = at::ones({4, 20}, group.device());
    for (int step = 0; step < 4; ++step) {
      simulation::synchronize_all();
      const auto before = simulation::counts(0);
      model->zero_grad();
      (wrapped ? (*ddp)(input) : model->forward(input)).sum().backward();
      cost = simulation::counts(0) - before;
    }
  });
  return cost;
}

TEST_F(CostOfAStep, OfFp32IsACopyAndACollectiveForEachBucket) {
  const auto plain = cost_of_step("fp32", false);
  const auto wrapped = cost_of_step("fp32", true);
  // One for the gradients of the only bucket, and one for the buffers of each dtype.
  EXPECT_LE(wrapped.kernels, plain.kernels + 3);
  EXPECT_EQ(wrapped.collectives, 2u);
  EXPECT_EQ(wrapped.copies, plain.copies);
  EXPECT_EQ(wrapped.host_synchronisations, plain.host_synchronisations);
}

TEST_F(CostOfAStep, NoWaitOfTheHostForTheDevice) {
  for (const auto* strategy : {"fp32", "fp16", "bf16", "topk:0.1", "power_sgd:rank=1",
                               // in pinned memory of the host
                               "threshold:0.01", "int8"}) {
    EXPECT_EQ(cost_of_step(strategy, true).host_synchronisations, 0u) << strategy;
  }
}

// A thread of NCCL ends the call.
TEST_F(CostOfAStep, ACallInProgressIsPolledWithoutSleep) {
  long least = std::numeric_limits<long>::max();
  on_devices(1, DeviceBackend::nccl, [&](const Group& group) {
    const auto tensor = at::ones({10}, group.device());
    // A sleep is a voluntary context switch. Preemption is an involuntary one.
    const auto sleeps = [] {
      rusage usage{};
      ::getrusage(RUSAGE_THREAD, &usage);
      return usage.ru_nvcsw;
    };
    nccl_double()->slow_groups = 2;  // few: a call that takes long is waited for in sleep
    for (int i = 0; i < 50; ++i) {
      const auto before = sleeps();
      auto work = group.all_reduce(tensor);
      least = std::min(least, sleeps() - before);
      work.wait();
    }
    nccl_double()->slow_groups = 0;
  });
  EXPECT_EQ(least, 0);
}

class RuntimeOfCuda : public OnSimulation {};

// LibTorch would report it as the error of its next kernel.
TEST_F(RuntimeOfCuda, AFailureDoesNotStayTheLastError) {
  const device::CudaFunction<void*, std::size_t, unsigned> pin("cudaHostRegister");
  EXPECT_FALSE(pin(nullptr, 4096, 0));
  const device::CudaFunction<> last_error("cudaGetLastError");
  EXPECT_TRUE(last_error());
}

class Captures : public OnSimulation {};

// The program captures a CUDA graph on another stream, while the progress thread and the program
// poll an operation; and while a group waits for its last copies, because it ends.
TEST_F(Captures, OfOtherStreamsAreValid) {
  for (const auto backend : {DeviceBackend::staged, DeviceBackend::nccl}) {
    SCOPED_TRACE(name(backend));
    on_devices(1, backend, [](const Group& group) {
      const auto tensor = at::ones({1000}, group.device());
      group.all_reduce(tensor).wait();
      auto part = std::make_optional(group.split(0));
      simulation::slow_down(group.device().index(), 20'000);
      auto work = group.all_reduce(tensor);
      simulation::begin_capture();
      std::this_thread::sleep_for(2ms);
      (void)work.ready();  // polls
      EXPECT_TRUE(simulation::end_capture());
      work.wait();
      part->all_reduce(tensor).wait();
      simulation::begin_capture();
      part.reset();
      EXPECT_TRUE(simulation::end_capture());
      simulation::slow_down(group.device().index(), 0);
      group.barrier().wait();
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
