#include <unistd.h>

#include <sstream>

#include "core/system/denormals_guard.h"
#include "lockstep/error.h"
#include "lockstep/init.h"
#include "tests/group/denormal_threads.h"
#include "tests/group/launchers.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using lockstep::detail::DenormalsGuard;
using Variables = Launched::Variables;

// tests/comm has ranks whose settings differ.

/// Every rank's line of init_program, all kinds of threads alike.
std::string lines(int ranks, int flushed) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    text += concat("rank ", rank, ": ", all_threads(flushed), ", nested autograd ", flushed,
                   ", inter-op ", flushed, '\n');
  }
  return text;
}

/// The output of ranks under `lockstep run`, in the order of ranks, without prefixes.
std::string output_of(int ranks, std::vector<std::string> options, const std::string& behaviour) {
  options.insert(options.end(), {"-n", std::to_string(ranks), init_program, behaviour});
  const auto ended = run_lockstep(options, {{"OMP_NUM_THREADS", "3"}});
  EXPECT_EQ(ended.code, 0) << ended.err;
  std::multiset<std::string> found;
  std::istringstream in(ended.out);
  for (std::string line; std::getline(in, line);) {
    const auto begin = line.find("rank ");
    if (begin != std::string::npos) found.insert(line.substr(begin));
  }
  return lockstep::detail::joined(found, "\n") + '\n';
}

class Denormals : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  }
};

TEST_F(Denormals, AreFlushedInEveryThreadOfProcesses) {
  EXPECT_EQ(output_of(3, {}, "denormals"), lines(3, 1));
  EXPECT_EQ(output_of(3, {}, "denormals-late"), lines(3, 1)) << "of threads older than init()";
}

TEST_F(Denormals, AreKeptWhereTheLauncherOrTheProgramSaysSo) {
  EXPECT_EQ(output_of(2, {"--denormals", "keep"}, "denormals"), lines(2, 0));
  EXPECT_EQ(output_of(2, {"--denormals", "flush"}, "denormals-kept"), lines(2, 0));
}

TEST_F(Denormals, AreFlushedInEveryThreadOfThreadRanks) {
  for (const auto& [n, caller] : {std::pair(1, true), {3, false}, {3, true}}) {
    const DenormalsGuard guard(caller);
    const auto of_caller = what_is_flushed();
    std::vector<std::string> texts(static_cast<std::size_t>(n));
    const auto look = [&](const Group& world) {
      at::set_num_threads(3);
      texts[static_cast<std::size_t>(world.rank())] = what_is_flushed();
    };
    for (const auto& flush : {std::optional<bool>(), std::optional(false)}) {
      spawn(n, look, {.flush_denormals = flush});
      EXPECT_THAT(texts, Each(all_threads(flush ? 0 : 1)));
      EXPECT_EQ(flushes_denormals(), caller) << "spawn() changed its caller's setting";
    }
    EXPECT_EQ(what_is_flushed(), of_caller);
  }
}

TEST_F(Denormals, AreFlushedInAWorldOfOneWithoutALauncher) {
  const auto told = [](const Variables& variables) {
    return Launched({init_program, "denormals"}, variables).wait().out;
  };
  EXPECT_EQ(told({}), lines(1, 1));
  EXPECT_EQ(told({{"LOCKSTEP_FLUSH_DENORMALS", "0"}}), lines(1, 0));
}

TEST_F(Denormals, StayAsTheyWereWhenInitRefuses) {
  for (const bool before : {false, true}) {
    const DenormalsGuard guard(before);
    EXPECT_THROW(init({.timeout = std::chrono::milliseconds(-1), .flush_denormals = !before}),
                 InvalidArgument);
    EXPECT_EQ(flushes_denormals(), before);
  }
}

}  // namespace
}  // namespace lockstep::testing
