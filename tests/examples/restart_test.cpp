#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/text.h"
#include "tests/examples/digits.h"
#include "tests/examples/program_run.h"
#include "tests/launch/launched.h"

// Training that is killed and started again ends in the bits of training that was left in peace.

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using ::testing::HasSubstr;
using ::testing::Not;

/// The processes of that name that the launcher has started.
std::set<pid_t> ranks_of(pid_t launcher, const std::string& program) {
  std::set<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream in(entry.path() / "stat");
    std::string pid;
    std::string name;
    std::string state;
    pid_t parent = 0;
    if (in >> pid >> name >> state >> parent && parent == launcher &&
        name == concat('(', program, ')') && state != "Z")
      found.insert(std::stoi(pid));
  }
  return found;
}

bool has_ended(pid_t pid) {
  siginfo_t info{};
  const int options = WEXITED | WNOHANG | WNOWAIT;
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, options) == 0 && info.si_pid == pid;
}

class Restarted : public ProgramRun {
 protected:
  /// Where each kill is to fall: so long after this epoch's line, or after the ranks' start.
  struct Moment {
    std::string line;
    std::chrono::milliseconds longest;
  };

  /// Runs a program on two ranks, one of which is killed at a random moment of each attempt but the
  /// last.
  Ended killed(const std::string& program, const std::vector<std::string>& arguments,
               const std::vector<Moment>& moments) {
    // Orphans of programs that other tests ran: Launched makes this process their parent.
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
    std::vector<std::string> command{launcher,
                                     "run",
                                     "-n",
                                     "2",
                                     "--max-restarts",
                                     std::to_string(moments.size()),
                                     "--restart-delay",
                                     "0",
                                     bin + program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Launched job(command, {{"OMP_NUM_THREADS", "1"}});
    std::set<pid_t> before;
    for (const auto& [line, longest] : moments) {
      std::vector<pid_t> ranks;
      while (ranks.size() < 2) {  // of this attempt
        if (has_ended(job.pid())) {
          ADD_FAILURE() << "it ended before all kills";
          return job.wait();
        }
        ranks.clear();
        for (const auto pid : ranks_of(job.pid(), program)) {
          if (!before.contains(pid)) ranks.push_back(pid);
        }
      }
      before.insert(ranks.begin(), ranks.end());
      if (!line.empty()) job.await_output(line);
      std::this_thread::sleep_for(longest * (random_() % 1000) / 1000);
      EXPECT_EQ(::kill(ranks[random_() % 2], SIGKILL), 0);
    }
    return job.wait();
  }

  static void expect_restarts(const Ended& ended, int count) {
    EXPECT_EQ(ended.code, 0) << ended.err;
    for (int restart = 1; restart <= count; ++restart)
      EXPECT_THAT(ended.err, HasSubstr(concat("restart ", restart, " of ", count, ": rank ")));
    EXPECT_THAT(ended.err, Not(HasSubstr("not started again")));
    EXPECT_FALSE(anything_left());
  }

  /// The content of the newest file in a folder of checkpoints.
  std::string newest(const std::string& name) const {
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder / name)) {
      if (!entry.path().filename().string().starts_with('.')) files.insert(entry.path());
    }
    return files.empty() ? "" : content(*files.rbegin());
  }

 private:
  std::mt19937 random_{20};
};

class RestartedMnistCnn : public Restarted {
 protected:
  RestartedMnistCnn() {
    std::filesystem::create_directory(folder / "data");
    write_digits(folder / "data", "train", 203, 1);
    write_digits(folder / "data", "t10k", 51, 2);
  }

  std::vector<std::string> arguments(int epochs, const std::string& checkpoints) const {
    return {"--data",
            (folder / "data").string(),
            "--batch-size",
            "16",
            "--epochs",
            std::to_string(epochs),
            "--checkpoint-dir",
            (folder / checkpoints).string(),
            "--seed",
            "3",
            "--lr",
            "0.05",
            "--strategy",
            "topk:0.1",
            "--no-efficiency"};
  }
  /// The same words for a shell.
  std::string words(int epochs, const std::string& checkpoints) const {
    std::string text = "mnist_cnn";
    for (const auto& word : arguments(epochs, checkpoints)) text += ' ' + word;
    return text;
  }
};

TEST_F(RestartedMnistCnn, EndsInTheSameBitsWheneverItIsKilled) {
  constexpr int epochs = 10;
  ASSERT_EQ(alone(words(epochs, "whole") + " --threads 2").code, 0);
  using namespace std::chrono_literals;
  const auto names_before = shared_memory_names();
  const auto ended = killed("mnist_cnn", arguments(epochs, "killed"),
                            {{"epoch 2/", 30ms}, {"", 300ms}, {"epoch 4/", 30ms}});
  expect_restarts(ended, 3);
  EXPECT_THAT(ended.out, HasSubstr(" epochs are done\n"));
  EXPECT_EQ(count(ended.out, "epoch 1/10"), 1) << "began anew: " << ended.out;
  EXPECT_FALSE(newest("whole").empty());
  EXPECT_TRUE(newest("whole") == newest("killed"));
  EXPECT_THAT(names_before, ::testing::IsSupersetOf(shared_memory_names()));
  EXPECT_THAT(flight_records(ended.pid), ::testing::IsEmpty());
}

TEST_F(RestartedMnistCnn, SkipsACheckpointThatIsDamaged) {
  ASSERT_EQ(alone(words(3, "whole")).code, 0);
  ASSERT_EQ(alone(words(2, "spoilt")).code, 0);
  std::filesystem::resize_file(folder / "spoilt" / "checkpoint-000002.safetensors", 5000);
  const Result result = alone(words(3, "spoilt"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "skipped "), 1);
  EXPECT_THAT(result.out, HasSubstr("checkpoint-000002.safetensors: "));
  EXPECT_THAT(result.out, HasSubstr("spoilt: 1 epoch is done"));
  EXPECT_TRUE(newest("whole") == newest("spoilt"));

  // A run that was ended behind its last checkpoint has nothing left to do but to say so.
  const Result again = alone(words(3, "spoilt"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("spoilt: 3 epochs are done"));
  EXPECT_THAT(again.out, Not(HasSubstr("epoch ")));
  EXPECT_THAT(again.out, HasSubstr("\ncheckpoint /"));
}

TEST_F(Restarted, DdpTrainerGoesOnFromItsSnapshot) {
  const auto arguments = [&](const std::string& name) {
    return std::vector<std::string>{"4",   "1",          "--batch_size",
                                    "250", "--snapshot", (folder / name).string()};
  };
  using namespace std::chrono_literals;
  expect_restarts(killed("ddp_trainer", arguments("killed"), {{"epoch 1 |", 20ms}}), 1);
  expect_restarts(killed("ddp_trainer", arguments("whole"), {}), 0);
  EXPECT_FALSE(content(folder / "whole").empty());
  EXPECT_TRUE(content(folder / "whole") == content(folder / "killed"));
}

}  // namespace
}  // namespace lockstep::testing
