#include "lockstep/distributed_data_parallel.h"
#include "tests/device/on_devices.h"
#include "tests/matchers.h"
#include "tests/refusal.h"

// Failures of device groups: every rank raises the first cause, and none hangs.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Far below the timeout of ranks. GPUs take longer to start: the driver and NCCL take seconds.
auto soon() { return on_gpus() ? 50s : 30s; }

/// The error of each rank, in a world in which fn fails on some. It must end soon.
std::vector<std::string> errors_of(int n, DeviceBackend backend,
                                   const std::function<void(Group)>& fn,
                                   std::chrono::milliseconds timeout = 60s) {
  const auto begin = Clock::now();
  auto errors = errors_in(
      n, [&](const auto& each) { on_devices(n, backend, each, timeout); }, fn);
  EXPECT_LT(Clock::now() - begin, soon());
  return errors;
}

at::Tensor ones_on(const Group& group, std::int64_t count) {
  return at::ones({count}, group.device());
}

/// An all_reduce that the host waits for, too.
void reduce_ones(const Group& group, std::int64_t count) {
  const auto tensor = ones_on(group, count);
  group.all_reduce(tensor).wait();
  EXPECT_NE(tensor.sum().item<float>(), 0);  // waits for the device
  group.barrier().wait();
}

class Failures : public ::testing::TestWithParam<DeviceBackend> {
 protected:
  void SetUp() override {
    if (processes() > 0) GTEST_SKIP() << "of ranks that are threads";
    if (const auto why = unable(some_ranks(), GetParam()); !why.empty()) GTEST_SKIP() << why;
    prepare_devices();
  }
  void TearDown() override { take_reports(); }  // also of what this program does on purpose
};

class NcclFailures : public OnSimulation {};

TEST_P(Failures, OperationsThatDiffer) {
  const auto errors = errors_of(some_ranks(), GetParam(), [](const Group& group) {
    reduce_ones(group, group.rank() == 1 ? 8 : 4);
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("differs between ranks: rank 1 got all_reduce sum float32 [8]"),
                         HasSubstr("expected all_reduce sum float32 [4] as on rank 0"))));
}

TEST_P(Failures, MessagesThatDiffer) {
  const auto errors = errors_of(2, GetParam(), [](const Group& group) {
    if (group.rank() == 0) group.send(ones_on(group, 4), 1, 7).wait();
    if (group.rank() == 1) group.recv(ones_on(group, 8), 0, 7).wait();
    reduce_ones(group, 4);  // comes after the message, as a barrier over NCCL need not
  });
  EXPECT_THAT(errors, Each(HasSubstr("message #1 from rank 0 to rank 1 differs: the receiver "
                                     "expected 8 elements of float32 with tag 7, got 4")));
}

// The progress thread may be about to copy the result, and the program releases the tensor.
TEST_P(Failures, MemoryOfAnAbandonedOperationIsReleasedAfterIt) {
  if (on_gpus()) GTEST_SKIP() << "of the simulated device";
  for (const bool waits : {false, true}) {
    const auto errors = errors_of(some_ranks(), GetParam(), [&](const Group& group) {
      const auto device = group.device().index();
      simulation::slow_down(device, 20'000);
      const auto tensor = ones_on(group, 4);
      auto work = group.all_reduce(tensor);
      if (!waits) throw std::runtime_error("left");
      group.communicator().fail("ended");
      work.wait();
    });
    for (int device = 0; device < some_ranks(); ++device) simulation::slow_down(device, 0);
    EXPECT_THAT(errors, Each(AnyOf(HasSubstr("left"), HasSubstr("ended"), HasSubstr("abandoned"))));
  }
  simulation::synchronize_all();
  EXPECT_THAT(simulation::take_races(), IsEmpty());
}

TEST_P(Failures, ARankThatThrows) {
  const auto errors = errors_of(some_ranks(), GetParam(), [](const Group& group) {
    if (group.rank() == group.size() - 1) throw std::runtime_error("the disk is full");
    reduce_ones(group, 1000);
  });
  EXPECT_THAT(errors, Each(HasSubstr("the disk is full")));
}

TEST_P(Failures, ARankThatDoesNotCome) {
  // NCCL must also start within the timeout.
  const auto timeout = on_gpus() ? 10'000ms : 500ms;
  const auto errors = errors_of(
      some_ranks(), GetParam(),
      [&](const Group& group) {
        if (group.rank() == 1) std::this_thread::sleep_for(3 * timeout);
        reduce_ones(group, 1000);
      },
      timeout);
  const auto seconds = detail::concat(static_cast<double>(timeout.count()) / 1000);
  EXPECT_THAT(errors, Each(HasSubstr("all_reduce #1 waited " + seconds + " s for rank 1")));
}

TEST_P(Failures, ARankThatLeaves) {
  const auto errors = errors_of(2, GetParam(), [](const Group& group) {
    if (group.rank() == 0) reduce_ones(group, 1000);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the world"));
}

TEST_P(Failures, AGroupThatOneRankLeavesEarlier) {
  on_devices(2, GetParam(), [](const Group& group) {
    {
      const auto part = group.split(0);
      part.all_reduce(ones_on(part, 10)).wait();
      if (group.rank() == 1) group.host().barrier().wait();
    }
    if (group.rank() == 0) group.host().barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, Failures, both_backends,
                         [](const auto& test) { return std::string(name(test.param)); });

// An error of NCCL itself, at each of the operations of a run.
TEST_F(NcclFailures, AsynchronousErrors) {
  for (int operation = 1; operation <= 6; ++operation) {
    SCOPED_TRACE(operation);
    const auto errors = errors_of(2, DeviceBackend::nccl, [&](const Group& group) {
      if (group.rank() == 1) nccl_double()->failing_operation = operation;
      group.barrier().wait();
      const auto tensor = ones_on(group, 100);
      for (int i = 0; i < 6; ++i) group.all_reduce(tensor, ReduceOp::avg).wait();
      tensor.sum().item<float>();  // any value: wait() orders streams, the error may come after it
      group.barrier().wait();
    });
    nccl_double()->failing_operation = 0;
    EXPECT_THAT(errors, Each(HasSubstr("asynchronous error: NCCL: ")));
    take_reports();
  }
}

TEST_F(NcclFailures, ACallThatDoesNotReturn) {
  const auto errors = errors_of(
      2, DeviceBackend::nccl,
      [](const Group& group) {
        nccl_double()->slow_groups = std::numeric_limits<int>::max();
        group.all_reduce(ones_on(group, 10)).wait();
        group.barrier().wait();
      },
      500ms);
  nccl_double()->slow_groups = 0;
  EXPECT_THAT(errors, Each(HasSubstr("a call has not returned after 0.5 s")));
}

// The kernel of the world is behind that of a group, so its abort waits for that of the group.
TEST_F(NcclFailures, KernelsOfSeveralGroups) {
  const auto errors = errors_of(2, DeviceBackend::nccl, [](const Group& group) {
    const auto part = group.split(0);
    group.barrier().wait();
    if (group.rank() == 1) throw std::runtime_error("the disk is full");
    const auto tensor = ones_on(group, 10);
    const auto first = part.all_reduce(tensor);
    const auto second = group.all_reduce(tensor);
    group.barrier().wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("the disk is full")));
  EXPECT_THAT(take_reports(), Each(Not(HasSubstr("does not end"))));
}

// A backward that throws makes the caller's stream wait for its buckets, and must not end the
// process if the device has failed.
TEST_F(NcclFailures, OfADeviceInABackwardThatThrows) {
  const auto errors = errors_of(1, DeviceBackend::nccl, [](const Group& group) {
    bool fails = false;
    const auto fail_in_backward = [&](const at::Tensor& values) {
      if (!fails) return values;
      values.register_hook([](const at::Tensor&) {
        simulation::fail_waits(true);
        throw std::runtime_error("in the middle");
      });
      return values;
    };
    auto model = std::make_shared<torch::nn::SequentialImpl>(
        torch::nn::Linear(4, 4), torch::nn::Functional(fail_in_backward), torch::nn::Linear(4, 4));
    model->to(group.device());
    DistributedDataParallel ddp(model, group, DataParallelOptions{.buckets = {0, 0}});
    try {
      for (int step = 0; step < 2; ++step) {  // the first sends its buckets at its end
        fails = step == 1;
        ddp(at::ones({2, 4}, group.device())).sum().backward();
      }
    } catch (const std::exception&) {
      simulation::fail_waits(false);
      throw;
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("in the middle"));
}

}  // namespace
}  // namespace lockstep::testing
