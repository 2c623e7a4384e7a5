
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/group/launchers.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

// Worlds of PyTorch's own launcher, and what it says when a rank ends with an error.

namespace lockstep::testing {
namespace {

class Torchrun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_torchrun()) GTEST_SKIP() << LOCKSTEP_TORCH_PYTHON << " has no torchrun";
  }

  Ended run(const std::string& behaviour, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{LOCKSTEP_TORCH_PYTHON,
                                   "-m",
                                   "torch.distributed.run",
                                   "--standalone",
                                   "--no-python",
                                   "--nproc-per-node",
                                   "2",
                                   "--log-dir",
                                   folder_.path().string()};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {init_program, behaviour});
    return Launched(words, {{"LOCKSTEP_TIMEOUT", "60"}}).wait();
  }

  static std::string after(const std::string& text, const std::string& word) {
    const auto at = text.find(word);
    return at == std::string::npos ? "" : text.substr(at);
  }

  TemporaryFolder folder_;
};

TEST_F(Torchrun, NamesTheRootCause) {
  const auto ended = run("throw");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(after(ended.err, "Root Cause"),
              AllOf(HasSubstr("rank      : 1 (local_rank: 1)"),
                    HasSubstr("traceback : std::runtime_error: no such data")))
      << ended.err;
}

TEST_F(Torchrun, AttemptsAreKeptApart) {
  const auto ended = run("throw-once", {"--max-restarts", "1"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("rank 0 of 2 over host: 3\n"),
                               HasSubstr("rank 1 of 2 over host: 3\n")));
}

TEST(ErrorFile, IsWrittenAsTorchrunReadsIt) {
  const TemporaryFolder folder;
  const auto file = folder / "error.json";
  // Refused by init(), and caught by the program.
  const auto ended =
      Launched({init_program},
               {{"TORCHELASTIC_ERROR_FILE", file.string()}, {"RANK", "2"}, {"WORLD_SIZE", "2"}})
          .wait();
  EXPECT_EQ(ended.code, 1);
  const auto content = nlohmann::json::parse(std::ifstream(file))["message"];
  EXPECT_THAT(content["message"].get<std::string>(),
              HasSubstr("lockstep::InvalidArgument: init: contradictory environment: RANK=2"));
  EXPECT_GT(std::stoll(content["extraInfo"]["timestamp"].get<std::string>()), 1'700'000'000);
}

TEST(ErrorFile, ThatCannotBeWrittenEndsNothingElse) {
  const auto ended = Launched({init_program}, {{"TORCHELASTIC_ERROR_FILE", "/nowhere/error.json"},
                                               {"RANK", "2"},
                                               {"WORLD_SIZE", "2"}})
                         .wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("contradictory environment"));
}

TEST(ErrorFile, FollowsNoLink) {
  const TemporaryFolder folder;
  const auto file = folder / "error.json";
  std::ofstream(folder / "precious") << "data";
  std::filesystem::create_symlink("precious", folder / "error.json.part");
  const auto ended = Launched({init_program}, {{"TORCHELASTIC_ERROR_FILE", file.string()},
                                               {"LOCKSTEP_LOG", "warn"},
                                               {"RANK", "2"},
                                               {"WORLD_SIZE", "2"}})
                         .wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("/error.json.part: it is a symbolic link to precious"));
  EXPECT_EQ(std::filesystem::file_size(folder / "precious"), 4U);
}

}  // namespace
}  // namespace lockstep::testing
