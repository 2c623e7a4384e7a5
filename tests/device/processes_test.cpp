#include <random>

#include "tests/device/training.h"
#include "tests/launch/launched.h"
#include "tests/message_of.h"
#include "tests/mpirun.h"
#include "tests/ranks.h"
#include "tests/variable.h"

// Ranks that are processes, each with simulated devices of its own, and ranks that are killed.

namespace lockstep::testing {
namespace {

Group device_world(const std::shared_ptr<Communicator>& ranks, DeviceBackend backend, int index) {
  prepare_devices();
  at::set_num_threads(1);
  const auto own = device_of(index);
  c10::impl::VirtualGuardImpl(own.type()).setDevice(own);
  return device_group(Group(ranks), own, {.backend = backend, .timeout = std::chrono::seconds(20)});
}

/// Trains for some steps. Before the step with this number, the rank ends as if by the kernel.
void train(const Group& group, int steps, int end_before = -1) {
  auto net = std::make_shared<Net>(group.device());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  DistributedDataParallel ddp(net, group, DataParallelOptions{.buckets = {0, 0}});
  for (int step = 0; step < steps; ++step) {
    if (step == end_before) ::kill(::getpid(), SIGKILL);
    sgd.zero_grad();
    const auto loss = loss_of(ddp(inputs_of(group, step)), group, step);
    loss.backward();
    sgd.step();
    (void)loss.item<float>();  // waits for the device
  }
  const auto sum = net->parameters()[0].detach().sum().cpu();
  const auto largest = sum.clone();
  group.host().all_reduce(largest, ReduceOp::max).wait();
  if (largest.item<float>() != sum.item<float>()) throw std::runtime_error("replicas differ");
}

const ProcessBody staged_training("device: staged, ranks share a device", [](auto ranks) {
  train(device_world(ranks, DeviceBackend::staged, 0), 6);
});
const ProcessBody nccl_training("device: nccl", [](auto ranks) {
  train(device_world(ranks, DeviceBackend::nccl, ranks->rank()), 6);
});
/// Throws if the message lacks the text.
void expect_text(const std::string& message, const std::string& text) {
  if (message.find(text) == std::string::npos) throw std::runtime_error("got " + message);
}
const ProcessBody same_device("device: nccl, ranks share a device", [](auto ranks) {
  const auto world = [&] { return device_world(ranks, DeviceBackend::nccl, 0); };
  expect_text(message_of<BackendUnavailable>([&] { (void)world(); }),
              "NCCL needs a GPU for each rank");
  if (on_gpus()) return;
  nccl_double()->version = 23007;
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  train(world(), 6);
});

/// LOCKSTEP_TEST_KILL=RANK,STEP
void train_with_kill(const std::shared_ptr<Communicator>& ranks, DeviceBackend backend) {
  const std::string kill = std::getenv("LOCKSTEP_TEST_KILL");
  const int victim = std::stoi(kill);
  const int step = std::stoi(kill.substr(kill.find(',') + 1));
  const auto group = device_world(ranks, backend, ranks->rank());
  train(group, 1000, group.rank() == victim ? step : -1);
}
const ProcessBody staged_kill("device: staged, a rank is killed",
                              [](auto ranks) { train_with_kill(ranks, DeviceBackend::staged); });
const ProcessBody nccl_kill("device: nccl, a rank is killed",
                            [](auto ranks) { train_with_kill(ranks, DeviceBackend::nccl); });

/// Rank 1 ends after it has announced collectives that its device has not completed.
void end_in_collective(const std::shared_ptr<Communicator>& ranks) {
  const auto group = device_world(ranks, DeviceBackend::nccl, ranks->rank());
  const auto tensor = at::ones({100}, group.device());
  group.barrier().wait();
  if (group.rank() == 1) simulation::slow_down(1, 5'000'000);
  const auto first = group.all_reduce(tensor);
  const auto second = group.all_reduce(tensor);
  if (group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // for the announcements
    ::kill(::getpid(), SIGKILL);
  }
  (void)tensor.sum().item<float>();  // waits for the device
  group.barrier().wait();
}
const ProcessBody killed_in_collective("device: nccl, a rank is killed in a collective",
                                       end_in_collective);

/// Rank 1 ends while the other ranks wait for a call of NCCL.
void end_in_call(const std::shared_ptr<Communicator>& ranks) {
  const auto group = device_world(ranks, DeviceBackend::nccl, ranks->rank());
  const auto tensor = at::ones({100}, group.device());
  group.all_reduce(tensor).wait();
  group.barrier().wait();
  if (group.rank() == 1) ::kill(::getpid(), SIGKILL);
  nccl_double()->slow_groups = std::numeric_limits<int>::max();
  group.all_reduce(tensor).wait();
}
const ProcessBody killed_in_call("device: nccl, a rank is killed in a call of NCCL", end_in_call);

/// NCCL does not start in time on rank 0. Every rank gets an error, and the world stays usable.
const ProcessBody late_start("device: nccl, its start takes too long on a rank", [](auto ranks) {
  prepare_devices();
  if (ranks->rank() == 0) nccl_double()->slow_init = std::numeric_limits<int>::max();
  const Group world(ranks);
  const auto text = message_of<Error>([&] {
    (void)device_group(world, device_of(ranks->rank()),
                       {.backend = DeviceBackend::nccl, .timeout = std::chrono::milliseconds(500)});
  });
  const auto* const expected = ranks->rank() == 0 ? "a call has not returned after 0.5 s"
                                                  : "the start of NCCL failed on another rank";
  expect_text(text, expected);
  world.barrier().wait();
});

class DeviceProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (processes() > 0) GTEST_SKIP() << "starts processes itself";
    if (device_count() < 2) GTEST_SKIP() << "needs 2 GPUs, has " << device_count();
  }
};

TEST_F(DeviceProcesses, Train) {
  expect_processes(3, "device: staged, ranks share a device");
  expect_processes(some_ranks(), "device: nccl");
  expect_processes(2, "device: nccl, ranks share a device");
}

/// The other ranks name the one that ends itself in this body, in time.
void expect_named(int ranks, const char* body, int victim, int seconds) {
  SCOPED_TRACE(body);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = run_processes(ranks, body);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(seconds));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.exited, rank != victim) << outcome.code;
    if (rank == victim) continue;
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(detail::concat("rank ", victim, " left the world")));
  }
}

TEST_F(DeviceProcesses, NameARankThatWasKilledInACollectiveAndAgreeThatNcclDoesNotStart) {
  if (on_gpus()) GTEST_SKIP() << "of the simulated device and the double of NCCL";
  expect_named(3, "device: nccl, a rank is killed in a collective", 1, 10);
  expect_named(3, "device: nccl, a rank is killed in a call of NCCL", 1, 10);
  expect_processes(3, "device: nccl, its start takes too long on a rank");
}

// LOCKSTEP_TEST_REPEATS=100 is the long form.
TEST_F(DeviceProcesses, NameARankThatWasKilled) {
  const char* const text = std::getenv("LOCKSTEP_TEST_REPEATS");
  const int ranks = some_ranks();
  const int repeats = text != nullptr ? std::stoi(text) : 2;
  std::minstd_rand random(57);  // kills rank 0, then rank 2
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const auto kill = std::to_string(victim) + "," + std::to_string(random() % 12);
    SCOPED_TRACE(kill);
    const Variable variable("LOCKSTEP_TEST_KILL", kill.c_str());
    expect_named(ranks, "device: staged, a rank is killed", victim, on_gpus() ? 60 : 15);
    expect_named(ranks, "device: nccl, a rank is killed", victim, on_gpus() ? 60 : 15);
  }
}

// Groups on devices whose ranks MPI's launcher has started, on one host and on simulated hosts. The
// ranks run tests of this program again.

class DeviceHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (on_gpus()) GTEST_SKIP() << "simulated hosts would share GPUs";
    if (processes() > 0) GTEST_SKIP() << "starts processes itself";
    if (const auto why = mpi::available(); !why.empty()) GTEST_SKIP() << why;
  }

  /// Runs tests on ranks of this backend, two ranks on each simulated host.
  static void expect_passes(int ranks, const std::string& backend, const std::string& tests) {
    SCOPED_TRACE(detail::concat(backend, ", ", ranks, " ranks"));
    auto words = mpirun(ranks);
    words.insert(words.end(),
                 {"sh", "-c",
                  "r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; export LOCKSTEP_HOST=$((r / 2)); "
                  "NCCL_HOSTID=$LOCKSTEP_HOST exec \"$@\"",
                  "--", LOCKSTEP_BINARY_DIR "/test_device", "--gtest_filter=" + tests});
    const auto ended = Launched(words, {{"LOCKSTEP_BACKEND", backend},
                                        {"LOCKSTEP_DEVICE", "cpu"},
                                        {"MASTER_ADDR", "127.0.0.1"},
                                        {"MASTER_PORT", free_port()},
                                        {"GTEST_COLOR", "no"},
                                        {"OMP_NUM_THREADS", "1"}})
                           .wait();
    // Each rank has run tests. The exit status is that of a rank without tests, too.
    int passed = 0;
    const std::string text = "[  PASSED  ] ";
    for (auto at = ended.out.find(text); at != std::string::npos;
         at = ended.out.find(text, at + 1)) {
      if (ended.out[at + text.size()] != '0') ++passed;
    }
    EXPECT_EQ(passed, ranks) << ended.out << ended.err;
    EXPECT_THAT(ended.out, AllOf(Not(HasSubstr("FAILED")), Not(HasSubstr("SKIPPED"))));
  }
};

// The reference is the host world's own collective: MPI's, TCP's, or that of shared memory inside a
// host and MPI between hosts.
TEST_F(DeviceHosts, HaveTheCollectivesAndTrain) {
  expect_passes(3, "mpi", "Devices/Collectives.*3");
  expect_passes(3, "hierarchical", "Devices/Collectives.*3:Devices/TrainingOnDevices.*3");
  expect_passes(3, "tcp", "Devices/Collectives.*staged3");
}

}  // namespace
}  // namespace lockstep::testing
