// Programs under mpirun, as SINGA's and Needle's are started.

#include <thread>

#include "core/system/topology.h"
#include "tests/examples/program_run.h"
#include "tests/launch/simulated_hosts.h"
#include "tests/mpirun.h"

namespace lockstep::testing {
namespace {

class UnderMpirun : public ProgramRun {
 protected:
  void SetUp() override {
    if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  }

  /// Two processes of these words of a shell.
  Result mpirun_of(const std::string& words, const std::string& backend) const {
    std::string command = "LOCKSTEP_BACKEND=" + backend;
    for (const auto& word : testing::mpirun(2)) command += " '" + word + "'";
    return run(command + ' ' + words);
  }
  Result mpirun(const std::string& program, const std::string& backend = "auto") const {
    return mpirun_of(quoted_bin + program, backend);
  }
};

TEST_F(UnderMpirun, TheBackendIsAFlagToo) {
  const Result result = mpirun("regression --backend mpi");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "\nepoch 4: loss "), 1) << result.out;
  const Result alone = two_ranks("regression --backend mpi");
  EXPECT_EQ(alone.code, 1);
  EXPECT_EQ(count("\n" + alone.err, "\nregression: init: "), 1) << alone.err;
}

TEST_F(UnderMpirun, TheRankThatFailsComplainsAndNobodyElse) {
  const Result result = mpirun("gradient_proof --data nowhere");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(count("\n" + result.err, "\ngradient_proof: "), 1) << result.err;
  const Result thrown = mpirun("failing_program 1");
  EXPECT_NE(thrown.code, 0);
  EXPECT_EQ(count("\n" + thrown.err, "\nfailing_program: "), 1) << thrown.err;
  // Most errors of Lockstep are raised on all ranks. This one is not.
  for (const std::string backend : {"host", "mpi"}) {
    const Result data = mpirun("failing_program data", backend);
    EXPECT_NE(data.code, 0);
    EXPECT_EQ(count("\n" + data.err, "\nfailing_program: "), 1) << data.err;
    EXPECT_THAT(data.err, HasSubstr("failing_program: images: missing")) << backend;
  }
}

TEST_F(UnderMpirun, AWrongFlagIsPrintedOnce) {
  const struct {
    std::string backend, first, second;  // flags of rank 0, of rank 1
  } cases[] = {{"host", "--nosuch", ""},
               {"host", "", "--nosuch"},
               {"mpi", "", "--nosuch"},
               {"auto", "--nosuch", "--nosuch"}};
  for (const auto& [backend, first, second] : cases) {
    const Result result =
        mpirun_of("sh -c 'test ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 && exec \"$0\" all " + first +
                      "; exec \"$0\" all " + second + "' " + quoted_bin + "failing_program",
                  backend);
    EXPECT_TRUE(backend == "auto" ? result.code == 2 : result.code != 0) << result.code;
    EXPECT_EQ(count(result.err, "--nosuch"), 1) << backend << first << '\n' << result.err;
  }
}

// Training that goes on after a failure ends in the bits of training that starts from the same
// checkpoint. bench/faults/random_kills kills ranks of one host.

class Restarted : public ProgramRun {};

TEST_F(Restarted, GoesOnWithoutALostHost) {
  const SshHosts hosts;
  if (!hosts.made()) GTEST_SKIP() << "no network namespace can be made here (not root?)";
  write_digits(folder / "data", 203, 51);
  const auto program = [&](const std::string& checkpoints) {
    return concat("mnist_cnn --data ", (folder / "data").string(), " --checkpoint-dir ",
                  (folder / checkpoints).string(),
                  " --batch-size 16 --epochs 8 --seed 3 --lr 0.05 --strategy topk:0.1 "
                  "--no-efficiency");
  };
  const auto list = concat(SshHosts::address(0), ":1,", hosts.name(1), ":1,", hosts.name(2), ":1");
  // The ranks notice the loss before the launchers, and end.
  Launched job(
      hosts.command({"--hosts", list, "--min-hosts", "2", "--max-restarts", "1", "--restart-delay",
                     "0", "sh", "-c", "LOCKSTEP_HEARTBEAT=6 exec " + quoted_bin + program("lost")}),
      {{"OMP_NUM_THREADS", "1"}, {"LOCKSTEP_HEARTBEAT", "9"}});
  job.await_output("epoch 3/");
  hosts.cut(1);
  // The ranks wait for one another, so that none saves the state of a later epoch.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::filesystem::copy(folder / "lost", folder / "resumed",
                        std::filesystem::copy_options::recursive);
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("restart 1 of 1: node 1 of 3 failed first: no heartbeat from"));
  EXPECT_THAT(ended.out, HasSubstr(" epochs are done\n"));

  const auto before = newest("resumed");
  ASSERT_EQ(two_ranks(program("resumed")).code, 0);
  EXPECT_FALSE(newest("resumed") == before);
  EXPECT_TRUE(newest("resumed") == newest("lost"));
}

// `lockstep tune` on an example, which knows nothing of it.

class Tuned : public ProgramRun {};

TEST_F(Tuned, ExampleIsMeasuredWithOtherBucketsAndSharedMemory) {
  if (Topology::read().cores.size() < 2) GTEST_SKIP() << "one core: nothing to divide";
  const auto result = run(
      quoted_launcher +
      " tune --json --global-batch 32 --ranks 2 --buckets 1 --rounds 1 --seconds 0.2 --warm-up 0 " +
      quoted_bin + "mnist_cnn --no-efficiency --epochs 1000 --batch-size {batch}");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["rate_unit"], "samples/s");
  // Buckets are measured with the best binding, and once more together if both changes gain.
  bool shared = false;
  bool small_buckets = false;
  for (const auto& one : json["candidates"]) {
    if (one["bucket_mib"] == 1) small_buckets = true;
    if (one["share_memory"]) shared = true;
    EXPECT_GT(one["rate"], 0) << one;
  }
  EXPECT_TRUE(shared) << result.out;
  EXPECT_TRUE(small_buckets) << result.out;
}

}  // namespace
}  // namespace lockstep::testing
