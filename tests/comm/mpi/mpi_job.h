#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/launch/launched.h"
#include "tests/mpirun.h"

namespace lockstep::testing {

/// The network between the ranks: "mpi", or "tcp" and "ucx" in the ctest entries comm/tcp and
/// comm/ucx.
inline std::string network() {
  const char* name = std::getenv("LOCKSTEP_TEST_NETWORK");
  return name != nullptr ? name : "mpi";
}

/// The command that starts n processes of the test program with a behaviour, on hosts of these
/// letters if there are any.
inline std::vector<std::string> command(int n, const std::string& behaviour,
                                        const std::string& argument = {},
                                        const std::string& hosts = {}) {
  auto words = mpirun(n);
  words.insert(words.end(), {"env", "MASTER_PORT=" + free_port()});
  words.insert(words.end(), {LOCKSTEP_MPI_RANK_PROGRAM, behaviour, argument});
  if (!hosts.empty()) words.push_back(hosts);
  return words;
}

/// How often all ranks together say each text; a negative number is the least.
using Counts = std::vector<std::pair<int, std::string>>;

/// Tests that start processes by mpirun.
class Mpi : public ::testing::Test {
 protected:
  Mpi() { ::mkfifo(fifo_.c_str(), 0600); }

  void SetUp() override {
    if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  }

  /// Runs n processes, of which so many, or all, say what they met; what was said, once they have.
  std::string said(int n, const std::string& behaviour, const std::string& hosts = {},
                   int speakers = 0) {
    Launched job(command(n, behaviour, fifo_, hosts), variables());
    job.await_output("Error ", speakers > 0 ? speakers : n);
    const int released = ::open(fifo_.c_str(), O_RDWR | O_CLOEXEC);
    const auto ended = job.wait();
    ::close(released);
    // MPICH's mpiexec returns 0 in one run of ten when a rank ends with 0, without MPI_Finalize, in
    // the moment in which the others end with 1: seen of a program without Lockstep, too.
    const bool one_ends_well = speakers > 0 && speakers < n;
    if (!one_ends_well || mpi::version().starts_with("Open MPI")) {
      EXPECT_NE(ended.code, 0);
    }
    return ended.out;
  }

  /// Runs the command, and expects that it ends well and what the ranks said.
  static void expect_well(const std::vector<std::string>& words, const Counts& counts = {},
                          const Launched::Variables& variables = {}) {
    const auto ended = Launched(words, variables).wait();
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
    expect_counts(ended.out, counts);
  }

  static void expect_counts(const std::string& text, const Counts& counts) {
    for (const auto& [times, words] : counts) {
      const int found = count(text, words);
      EXPECT_TRUE(times < 0 ? found >= -times : found == times)
          << found << " times '" << words << "', expected " << times << ", in: " << text;
    }
  }

  static int count(const std::string& text, const std::string& word) {
    int found = 0;
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  }

  /// Expects that one of the ranks 0 to 3 is the cause of all that was said.
  static void expect_one_cause(const std::string& text) {
    int causes = 0;
    for (const char* rank : {"0", "1", "2", "3"}) {
      if (count(text, std::string(": rank ") + rank + ": this rank gives up") > 0) ++causes;
    }
    EXPECT_EQ(causes, 1) << text;
  }

  /// The test's folder also holds the files that OpenMPI leaves after it ends a job.
  Launched::Variables variables() const {
    return {{"OMPI_MCA_btl_vader_backing_directory", folder_.path().string()},
            {"OMPI_MCA_orte_tmpdir_base", folder_.path().string()}};
  }

  TemporaryFolder folder_;
  std::string fifo_ = (folder_.path() / "release").string();
};

/// A behaviour, and what ranks say of it.
struct ErrorCase {
  const char* name;
  int ranks;
  const char* behaviour;
  const char* hosts;
  Counts counts;
  int speakers;  ///< 0: all
};
inline ErrorCase error_case(const char* name, int ranks, const char* behaviour, const char* hosts,
                            Counts counts, int speakers = 0) {
  return {name, ranks, behaviour, hosts, std::move(counts), speakers};
}

/// Its test is in mpi_test.cpp.
class ErrorOf : public Mpi, public ::testing::WithParamInterface<ErrorCase> {};

/// Tests of MPI itself.
class OfMpi : public Mpi {
 protected:
  void SetUp() override {
    Mpi::SetUp();
    if (network() != "mpi") GTEST_SKIP() << "over " << network();
  }
};

}  // namespace lockstep::testing
