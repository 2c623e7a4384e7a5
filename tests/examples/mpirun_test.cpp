#include "tests/mpirun.h"

#include <array>
#include <fstream>
#include <string>

#include "comm/mpi/mpi.h"
#include "tests/examples/program_run.h"
#include "tests/matchers.h"

// Programs under mpirun, as SINGA's and Needle's are started.

namespace lockstep::testing {
namespace {

class UnderMpirun : public ProgramRun {
 protected:
  void SetUp() override {
    if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  }

  /// On two ranks. options: of mpirun.
  Result mpirun(const std::string& program, const std::string& options = "",
                const std::string& backend = "auto") const {
    std::string command = "LOCKSTEP_BACKEND=" + backend;
    for (const auto& word : testing::mpirun(2)) command += " '" + word + "'";
    return run(command + options + ' ' + quoted_bin + program);
  }
};

TEST_F(UnderMpirun, AProgramEndsWithOneSummary) {
  const Result result = mpirun("regression");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "\nepoch 4: loss "), 1) << result.out;
}

TEST_F(UnderMpirun, TheBackendIsAFlagToo) {
  const Result result = mpirun("custom_strategy --backend mpi");
  EXPECT_EQ(result.code, 0) << result.err;
  const Result alone =
      run(quoted_launcher + " run -n 2 " + quoted_bin + "custom_strategy --backend mpi");
  EXPECT_EQ(alone.code, 1);
  EXPECT_EQ(count("\n" + alone.err, "\ncustom_strategy: init: "), 1) << alone.err;
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
    const Result data = mpirun("failing_program data", "", backend);
    EXPECT_NE(data.code, 0);
    EXPECT_EQ(count("\n" + data.err, "\nfailing_program: "), 1) << data.err;
    EXPECT_THAT(data.err, HasSubstr("rank 1: images: missing")) << backend;
  }
}

TEST_F(UnderMpirun, AWrongFlagOfOneRankIsPrintedOnce) {
  const std::string program = quoted_bin + "failing_program";
  const std::array<std::array<std::string, 3>, 3> cases{{{"host", " all --nosuch", " all"},
                                                         {"host", " all", " all --nosuch"},
                                                         {"mpi", " all", " all --nosuch"}}};
  for (const auto& [backend, first, second] : cases) {
    std::string command = "LOCKSTEP_BACKEND=" + backend;
    for (const auto& word : testing::mpirun(2)) command += " '" + word + "'";
    command += " sh -c 'test ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 && exec \"$0\"";
    const Result result = run(command + first + "; exec \"$0\"" + second + "' " + program);
    EXPECT_NE(result.code, 0);
    EXPECT_EQ(count(result.err, "--nosuch"), 1) << backend << first << '\n' << result.err;
  }
}

TEST_F(UnderMpirun, MnistCnnTakesAHostfile) {
  if (!mpi::version().starts_with("Open MPI")) GTEST_SKIP() << "a hostfile of Open MPI's form";
  std::ofstream(folder / "hosts") << "localhost slots=2\n";
  const Result result =
      mpirun("mnist_cnn --epochs 2 --metrics metrics.jsonl", " --hostfile hosts", "mpi");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "epoch 2/2  loss "), 1) << result.out;
  ASSERT_EQ(metrics().size(), 2u);
  EXPECT_EQ(metrics()[0]["ranks"], 2);
  EXPECT_LT(values("train_loss")[1], values("train_loss")[0]);
}

TEST_F(UnderMpirun, AWrongFlagIsNamedOnce) {
  const Result result = mpirun("mnist_cnn --epochs none");
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(complaints(result.err, "--epochs: "), 1) << result.err;
}

}  // namespace
}  // namespace lockstep::testing
