#include <fcntl.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

// Readers of the launcher's output that take nothing, or take it late.

namespace lockstep::testing {
namespace {

/// A job whose stdout is a terminal or a pipe that the test reads when it likes. Its stderr is a
/// file, or the same terminal.
class Unread {
 public:
  enum class Out { terminal, pipe };

  Unread(Out out, const std::vector<std::string>& arguments, bool stderr_too = false) {
    int writer = -1;
    if (out == Out::terminal) {
      EXPECT_EQ(::openpty(&reader_, &writer, nullptr, nullptr, nullptr), 0);
    } else {
      std::array<int, 2> ends{};
      EXPECT_EQ(::pipe(ends.data()), 0);
      reader_ = ends[0];
      writer = ends[1];
    }
    ::fcntl(reader_, F_SETFD, FD_CLOEXEC);
    ::fcntl(writer, F_SETFD, FD_CLOEXEC);
    std::vector<std::string> words{lockstep_program(), "run"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const auto err_file = (folder_ / "stderr").string();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(writer, STDOUT_FILENO);
      const int err = ::open(err_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      ::dup2(stderr_too ? writer : err, STDERR_FILENO);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    ::close(writer);
  }
  ~Unread() {
    if (reader_ >= 0) ::close(reader_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }

  /// All that the launcher writes from here on.
  std::string read_all() {
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t got = 0; (got = ::read(reader_, buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

  /// The exit code, or -1 when the launcher did not end in time.
  int code() {
    ::alarm(20);
    struct sigaction interrupting {};
    interrupting.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &interrupting, nullptr);
    int status = 0;
    const bool ended = ::waitpid(pid_, &status, 0) == pid_;
    ::alarm(0);
    if (!ended) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string err() const { return contents(folder_ / "stderr"); }

 private:
  TemporaryFolder folder_;
  int reader_ = -1;
  pid_t pid_ = -1;
};

/// A script of which each rank writes more than a terminal or a pipe holds, says in a fifo that it
/// has, and goes on as told.
class UnreadOutput : public ::testing::TestWithParam<Unread::Out> {
 protected:
  UnreadOutput() { ::mkfifo(fifo_.c_str(), 0600); }

  std::vector<std::string> two_ranks(const std::string& then) const {
    return {"-n", "2", "sh", "-c", concat("seq 40000; echo written > ", fifo_, "; ", then)};
  }
  /// Returns when both ranks have written. The launcher has taken their output then.
  void await_ranks() const {
    for (std::string text; text.size() < 2 * std::string("written\n").size();) {
      std::ifstream in(fifo_);
      for (std::string line; std::getline(in, line);) text += line + '\n';
    }
  }

  TemporaryFolder folder_;
  std::string fifo_ = (folder_ / "fifo").string();
};

INSTANTIATE_TEST_SUITE_P(By, UnreadOutput,
                         ::testing::Values(Unread::Out::terminal, Unread::Out::pipe),
                         [](const auto& test) {
                           return test.param == Unread::Out::terminal ? "terminal" : "pipe";
                         });

TEST_P(UnreadOutput, LeavesTheLauncherItsSignals) {
  Unread job(GetParam(), two_ranks("exec sleep 1000"));
  await_ranks();
  job.send(SIGINT);
  EXPECT_EQ(job.code(), 128 + SIGINT) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("lockstep: ended by SIGINT, no rank is left\n"),
                               HasSubstr("lockstep: output was lost: stdout: its reader did not "
                                         "take ")));
  EXPECT_FALSE(anything_left());
}

TEST_P(UnreadOutput, HidesNoRankThatFails) {
  Unread job(GetParam(),
             two_ranks(concat("[ $LOCKSTEP_RANK = 1 ] && exit 3; trap 'echo stopped > ", fifo_,
                              "; exit 0' TERM; while :; do sleep 1000 & wait; done")));
  await_ranks();
  std::string word;
  std::ifstream(fifo_) >> word;  // of rank 0, that the launcher stops
  EXPECT_EQ(word, "stopped");
  job.send(SIGTERM);
  EXPECT_EQ(job.code(), 3) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 1 of 2 failed first: it ended with exit code 3"),
                               HasSubstr("output was lost: stdout: its reader did not take ")));
  EXPECT_FALSE(anything_left());
}

TEST_P(UnreadOutput, IsKeptForALateReader) {
  Unread job(GetParam(), two_ranks(":"));
  await_ranks();
  auto text = job.read_all();
  EXPECT_EQ(job.code(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
  // A line of rank 1 may come within one of rank 0, whose bytes are shown at once on a terminal.
  text = std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m|[\r\n]"), "");  // colours, too
  std::size_t expected = 0;
  for (int i = 1; i <= 40000; ++i) expected += 2 * std::to_string(i).size() + 4;  // "[1] "
  EXPECT_EQ(text.size(), expected);
}

TEST(UnreadTerminal, OfBothStreamsEndsTheLauncherToo) {
  const TemporaryFolder folder;
  const auto fifo = (folder / "fifo").string();
  ::mkfifo(fifo.c_str(), 0600);
  Unread job(Unread::Out::terminal,
             {"-n", "1", "sh", "-c", concat("seq 40000; echo written > ", fifo, "; sleep 1000")},
             true);
  std::string word;
  std::ifstream(fifo) >> word;
  job.send(SIGTERM);
  EXPECT_EQ(job.code(), 128 + SIGTERM);
  EXPECT_FALSE(anything_left());
}

TEST(UnreadTerminal, ASignalEndsTheWaitForItsReader) {
  const TemporaryFolder folder;
  const auto fifo = (folder / "fifo").string();
  ::mkfifo(fifo.c_str(), 0600);
  // The job goes well and its output waits for the reader without a limit.
  Unread job(Unread::Out::terminal,
             {"-n", "1", "sh", "-c", concat("seq 40000; echo written > ", fifo)});
  std::string word;
  std::ifstream(fifo) >> word;
  job.send(SIGTERM);
  const int code = job.code();
  EXPECT_EQ(code, 128 + SIGTERM);
  EXPECT_THAT(job.err(), HasSubstr("lockstep: "));
  EXPECT_FALSE(anything_left());
}

}  // namespace
}  // namespace lockstep::testing
