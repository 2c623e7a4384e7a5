
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/text.h"
#include "tests/examples/digits.h"
#include "tests/examples/program_run.h"
#include "tests/launch/hosts_by_ssh.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"

// Training that goes on after a failure ends in the bits of training that starts from the same
// checkpoint. bench/faults/random_kills kills ranks of one host.

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

class Restarted : public ProgramRun {
 protected:
  Restarted() {
    std::filesystem::create_directory(folder / "data");
    write_digits(folder / "data", "train", 203, 1);
    write_digits(folder / "data", "t10k", 51, 2);
  }

  /// The content of the newest file in a folder of checkpoints.
  std::string newest(const std::string& name) const {
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder / name)) {
      if (!entry.path().filename().string().starts_with('.')) files.insert(entry.path());
    }
    return files.empty() ? "" : content(*files.rbegin());
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

TEST_F(Restarted, GoesOnWithoutALostHost) {
  const SshHosts hosts;
  if (!hosts.made()) GTEST_SKIP() << "no network namespace can be made here (not root?)";
  constexpr int epochs = 8;
  auto words = hosts.command(
      {"--hosts", concat(SshHosts::address(0), ":1,", hosts.name(1), ":1,", hosts.name(2), ":1"),
       "--min-hosts", "2", "--max-restarts", "1", "--restart-delay", "0",
       // The ranks notice the loss before the launchers, and end.
       "env", "LOCKSTEP_HEARTBEAT=6", bin + "mnist_cnn"});
  for (const auto& word : arguments(epochs, "lost")) words.push_back(word);
  Launched job(words, {{"OMP_NUM_THREADS", "1"}, {"LOCKSTEP_HEARTBEAT", "9"}});
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
  ASSERT_EQ(two_ranks(this->words(epochs, "resumed")).code, 0);
  EXPECT_FALSE(newest("resumed") == before);
  EXPECT_TRUE(newest("resumed") == newest("lost"));
}

}  // namespace
}  // namespace lockstep::testing
