#include <unistd.h>

#include <memory>
#include <sstream>

#include "core/system/denormals_guard.h"
#include "lockstep/error.h"
#include "lockstep/init.h"
#include "tests/group/denormal_threads.h"
#include "tests/group/launchers.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using lockstep::detail::DenormalsGuard;
using Variables = Launched::Variables;

/// Every rank's line of init_program, all kinds of threads alike.
std::string lines(int ranks, int flushed) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    text += concat("rank ", rank, ": ", all_threads(flushed), ", nested autograd ", flushed,
                   ", inter-op ", flushed, '\n');
  }
  return text;
}

class DenormalsOfRanks : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  }

  /// The output of ranks under `lockstep run`, in the order of ranks, without prefixes.
  static std::string said(std::vector<std::string> options, const std::string& behaviour,
                          Variables variables = {}) {
    options.insert(options.end(), {"-n", std::to_string(GetParam()), init_program, behaviour});
    variables["OMP_NUM_THREADS"] = "3";
    const auto ended = run_lockstep(options, variables);
    EXPECT_EQ(ended.code, 0) << ended.err;
    std::vector<std::string> found;
    std::istringstream in(ended.out);
    for (std::string line; std::getline(in, line);) {
      const auto begin = line.find("rank ");
      if (begin != std::string::npos) found.push_back(line.substr(begin) + '\n');
    }
    std::sort(found.begin(), found.end());
    std::string text;
    for (const auto& line : found) text += line;
    return text;
  }
};

TEST_P(DenormalsOfRanks, AreFlushedInEveryThreadOfProcesses) {
  EXPECT_EQ(said({}, "denormals"), lines(GetParam(), 1));
}

TEST_P(DenormalsOfRanks, AreFlushedInThreadsThatWereThereBeforeInit) {
  EXPECT_EQ(said({}, "denormals-late"), lines(GetParam(), 1));
}

TEST_P(DenormalsOfRanks, AreKeptWhereTheLauncherSaysSo) {
  EXPECT_EQ(said({"--denormals", "keep"}, "denormals"), lines(GetParam(), 0));
  EXPECT_EQ(said({}, "denormals", {{"LOCKSTEP_FLUSH_DENORMALS", "0"}}), lines(GetParam(), 0));
}

TEST_P(DenormalsOfRanks, AreKeptWhereTheProgramSaysSo) {
  EXPECT_EQ(said({"--denormals", "flush"}, "denormals-kept"), lines(GetParam(), 0));
}

TEST_P(DenormalsOfRanks, AreFlushedInEveryThreadOfThreadRanks) {
  const int n = GetParam();
  for (const bool caller : {false, true}) {
    const DenormalsGuard guard(caller);
    const auto of_caller = what_is_flushed();
    std::vector<std::string> texts(static_cast<std::size_t>(n));
    const auto look = [&](const Group& world) {
      at::set_num_threads(3);
      texts[static_cast<std::size_t>(world.rank())] = what_is_flushed();
    };
    spawn(n, look);
    EXPECT_THAT(texts, Each(all_threads(1)));
    EXPECT_EQ(flushes_denormals(), caller) << "spawn() changed its caller's setting";
    spawn(n, look, {.flush_denormals = false});
    EXPECT_THAT(texts, Each(all_threads(0)));
    EXPECT_EQ(flushes_denormals(), caller) << "spawn() changed its caller's setting";
    EXPECT_EQ(what_is_flushed(), of_caller);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DenormalsOfRanks, ::testing::Values(1, 2, 3));

/// The output of ranks that are started one by one. The last one keeps denormals.
std::vector<std::string> mixed_by_hand(int n) {
  const auto port = free_port();
  std::vector<std::unique_ptr<Launched>> ranks;
  for (int rank = 0; rank < n; ++rank) {
    ranks.push_back(std::make_unique<Launched>(
        std::vector{init_program, std::string("denormals")},
        Variables{{"RANK", std::to_string(rank)},
                  {"WORLD_SIZE", std::to_string(n)},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", port},
                  {"LOCKSTEP_TIMEOUT", "30"},
                  {"LOCKSTEP_FLUSH_DENORMALS", rank == n - 1 ? "0" : "1"}}));
  }
  std::vector<std::string> said;
  for (const auto& rank : ranks) said.push_back(rank->wait().out);
  return said;
}

TEST(DenormalsThatDiffer, AreNamedOnEveryRank) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  for (const int n : {2, 3}) {
    EXPECT_THAT(mixed_by_hand(n), Each(HasSubstr(concat("denormals are kept on rank ", n - 1,
                                                        ", expected flushed as on rank 0; set "))));
    const auto ended = run_lockstep({"-n", std::to_string(n), init_program, "denormals-mixed"});
    const std::string cause = "denormals are kept on rank 1, expected flushed as on rank 0; set ";
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_THAT(ended.out, HasSubstr(concat("init rank ", rank, " of ", n, ": ", cause)));
    }
  }
}

TEST(Denormals, AreFlushedInAWorldOfOneWithoutALauncher) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  const auto told = [](const Variables& variables) {
    return Launched({init_program, "denormals"}, variables).wait().out;
  };
  EXPECT_EQ(told({}), lines(1, 1));
  EXPECT_EQ(told({{"LOCKSTEP_FLUSH_DENORMALS", "0"}}), lines(1, 0));
}

TEST(Denormals, StayAsTheyWereWhenInitRefuses) {
  for (const bool before : {false, lockstep::detail::can_flush_denormals}) {
    const DenormalsGuard guard(before);
    EXPECT_THROW(init({.timeout = std::chrono::milliseconds(-1), .flush_denormals = !before}),
                 InvalidArgument);
    EXPECT_EQ(flushes_denormals(), before);
  }
}

}  // namespace
}  // namespace lockstep::testing
