#include "launch/job/output.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <regex>

#include "core/system/terminal.h"
#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::plain_line;
using namespace std::string_literals;

/// Runs a shell script on two ranks.
Ended run_script(const std::string& script, const Words& options = {}) {
  return run_lockstep(joined({"-n", "2"}, {options, {"sh", "-c", script}}));
}

/// The same with only the chosen rank doing anything.
std::string only(int rank, const std::string& script) {
  return concat("[ $LOCKSTEP_RANK = ", rank, " ] || exit 0; ", script);
}

TEST(Output, OfOthersIsPrefixedOrLeftOut) {
  const auto both = run_script("echo out; echo err >&2");
  EXPECT_THAT(both.out, AnyOf("out\n[1] out\n"s, "[1] out\nout\n"s));
  EXPECT_THAT(both.err, AnyOf("err\n[1] err\n"s, "[1] err\nerr\n"s));
  const auto quiet = run_script("echo out; echo err >&2", {"--quiet"});
  EXPECT_EQ(quiet.out, "out\n");
  EXPECT_EQ(quiet.err, "err\n");
}

TEST(Output, KeepsUnfinishedAndEmptyLinesAndTheLastDrawingOfOthers) {
  EXPECT_EQ(run_script(only(0, "printf 'a\\nb'")).out, "a\nb");
  EXPECT_EQ(run_script(only(1, "printf 'a\\nb'")).out, "[1] a\n[1] b\n");
  EXPECT_EQ(run_script(only(1, "printf '\\n\\n'")).out, "[1] \n[1] \n");
  EXPECT_EQ(run_script(only(1, "printf '10%%\\r20%%\\r30%%\\n'")).out, "[1] 30%\n");
  EXPECT_EQ(run_script(only(1, "printf 'dos\\r\\n'")).out, "[1] dos\n");
}

TEST(Output, OfRankZeroIsUnchangedWhateverItIs) {
  const TemporaryFolder folder;
  std::string bytes;
  for (unsigned i = 0, x = 1; i < 1'000'000; ++i, x = x * 1664525U + 1013904223U) {
    bytes.push_back(static_cast<char>(x >> 24));
  }
  std::ofstream(folder / "bytes", std::ios::binary) << bytes;
  const auto ended = run_script(only(0, concat("cat ", (folder / "bytes").string())));
  EXPECT_TRUE(ended.out == bytes) << ended.out.size() << " bytes";
}

TEST(Output, OfAVeryLongLineComesInPieces) {
  const auto ended = run_script(only(1, "head -c 200000 /dev/zero | tr '\\0' x; echo; echo end"));
  std::size_t xs = 0;
  for (const char c : ended.out) xs += c == 'x' ? 1 : 0;
  EXPECT_EQ(xs, 200'000U);
  EXPECT_THAT(ended.out, EndsWith("x\n[1] end\n"));
}

TEST(Output, OfRankZeroKeepsItsLinesBesideOthers) {
  const auto ended = run_script(
      "[ $LOCKSTEP_RANK = 0 ] && exec seq 100000 400000; for i in $(seq 2000); do echo x; done");
  std::istringstream lines(ended.out);
  int next = 100'000;
  for (std::string line; std::getline(lines, line);) {
    if (line == "[1] x") continue;
    ASSERT_EQ(line, std::to_string(next));
    ++next;
  }
  EXPECT_EQ(next, 400'001);
}

TEST(Output, GoesToLogFilesTooAlsoOfALinkedFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "scratch");
  std::filesystem::create_directory_symlink("scratch", folder / "link");
  for (const auto& [logs, written] : {std::pair("new/logs", "new/logs"), {"link", "scratch"}}) {
    const auto ended = run_script("printf \"out $LOCKSTEP_RANK\\r\\nx\"; echo err >&2",
                                  {"--quiet", "--log-dir", (folder / logs).string()});
    EXPECT_EQ(ended.code, 0);
    for (const int rank : {0, 1}) {
      const auto path = folder / written / concat("rank-", rank);
      EXPECT_EQ(content(path.string() + ".out"), concat("out ", rank, "\r\nx"));
      EXPECT_EQ(content(path.string() + ".err"), "err\n");
    }
  }
}

TEST(Input, GoesToRankZeroOnly) {
  EXPECT_EQ(run_in_shell("run -n 2 cat", "echo hello | ").out, "hello\n");
}

/// A job whose stdout is a terminal or a pipe that the test reads when it likes. Its stderr is a
/// pipe of its own, or the same terminal.
class Unread {
 public:
  enum class Out { terminal, pipe };

  Unread(Out out, const std::vector<std::string>& arguments, bool stderr_too = false,
         const Launched::Variables& variables = {}) {
    std::array<int, 2> ends{};
    EXPECT_EQ(out == Out::terminal ? ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr)
                                   : ::pipe(ends.data()),
              0);
    reader_ = ends[0];
    job_.emplace(run_command(arguments), variables,
                 Outputs{.out = ends[1], .err = stderr_too ? ends[1] : -1});
    ::close(ends[1]);
  }
  ~Unread() { ::close(reader_); }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;

  void send(int signal) const { job_->send(signal); }
  void resize(unsigned short rows, unsigned short columns) const {
    const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(reader_, TIOCSWINSZ, &size), 0);
    send(SIGWINCH);
  }
  /// The reader that takes nothing must not put off the end for long.
  Ended wait() {
    auto ended = job_->wait_for_all();
    EXPECT_LT(ended.seconds.count(), 30);
    return ended;
  }

  /// All that the launcher writes from here on.
  std::string read_all() const {
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t got = 0; (got = ::read(reader_, buffer.data(), buffer.size())) > 0;)
      text.append(buffer.data(), static_cast<std::size_t>(got));
    return text;
  }

 private:
  int reader_ = -1;
  std::optional<Launched> job_;
};

/// The output of `lockstep run` on a terminal of this type.
std::string on_terminal(const std::vector<std::string>& arguments, const char* type = "dumb",
                        const char* no_color = "") {
  Unread job(Unread::Out::terminal, arguments, true, {{"TERM", type}, {"NO_COLOR", no_color}});
  const auto text = job.read_all();
  job.wait();
  return text;
}

TEST(Terminal, IsSeenByRankZeroOnly) {
  EXPECT_THAT(
      on_terminal({"-n", "2", "sh", "-c", "test -t 1 && echo terminal || echo pipe"}),
      AllOf(HasSubstr("terminal\r\n"), HasSubstr("[1] pipe\r\n"), Not(HasSubstr("[1] terminal"))));
}

TEST(Terminal, HasColoursUnlessTheUserRefusesThem) {
  const std::vector<std::string> failing{"-n", "2", "sh", "-c",
                                         "[ $LOCKSTEP_RANK = 0 ] || { echo last; exit 3; }"};
  const auto coloured = on_terminal(failing, "xterm");
  EXPECT_THAT(coloured, HasSubstr("\x1b[36m[1]\x1b[0m last\r\n"));
  EXPECT_THAT(coloured, HasSubstr("\x1b[1;31mlockstep:\x1b[0m \x1b[1mrank 1 of 2 failed first"));
  for (const auto& plain : {on_terminal(failing, "dumb"), on_terminal(failing, "xterm", "1")}) {
    EXPECT_THAT(plain, HasSubstr("[1] last\r\nlockstep: rank 1 of 2 failed first"));
    EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(on_terminal({"true"}, "xterm"), HasSubstr("\x1b[1;31mlockstep:\x1b[0m run: "));
}

TEST(Terminal, KeepsTheSizeOfTheLaunchers) {
  const auto script =
      "for i in $(seq 500); do [ \"$(stty size <&2)\" = '33 77' ] && exit; sleep 0.02; done; exit "
      "3";
  Unread job(Unread::Out::terminal, {"-n", "1", "sh", "-c", concat("echo begun; ", script)}, true);
  job.resize(33, 77);
  EXPECT_EQ(job.read_all(), "begun\r\n");
  EXPECT_EQ(job.wait().code, 0);
}

TEST(Terminal, ShowsAnUnfinishedLineAtOnce) {
  // Rank 0 ends only once rank 1 has ended, and rank 1's line comes after the unfinished one.
  const TemporaryFolder folder;
  const auto fifo = (folder / "fifo").string();
  const auto script = concat("[ -p ", fifo, " ] || mkfifo ", fifo, " 2>/dev/null; ",
                             "if [ $LOCKSTEP_RANK = 0 ]; then printf '50%%\\r'; echo go > ", fifo,
                             "; else read word < ", fifo, "; echo $word; fi");
  EXPECT_THAT(on_terminal({"-n", "2", "sh", "-c", script}),
              AllOf(HasSubstr("50%\r"), HasSubstr("\n[1] go\r\n")));
}

TEST(PlainLine, KeepsTextTabsColoursAndBytesThatAreNoText) {
  for (const auto& line : {""s, "loss 0.5\tstep 3"s, "größe 漢字 😀"s, "\x1b[31mred\x1b[0m"s,
                           "\x1b[1;38;5;200mbold\x1b[m plain"s,
                           "\x1b[38:2::1:2:3mtrue colour\x1b[0m"s, "\xff\xfe\xc3 x"s}) {
    EXPECT_EQ(plain_line(line), line);
  }
  // A colour that is left on is reset.
  EXPECT_EQ(plain_line("\x1b[31mred"), "\x1b[31mred\x1b[0m");
  EXPECT_EQ(plain_line("\x1b[31mred\x1b[0m \x1b[1mbold"), "\x1b[31mred\x1b[0m \x1b[1mbold\x1b[0m");
}

TEST(PlainLine, LeavesOutSequences) {
  for (const auto& sequence :
       {// Clear the screen, move the cursor, hide it, change to another screen; one that ends as a
        // colour does, and one with an intermediate character.
        "\x1b[2J"s, "\x1b[10;20H"s, "\x1b[?25l"s, "\x1b[?1049h"s, "\x1b[>4;2m"s, "\x1b[ q"s,
        // Set the title, ended in two ways; a link, an image and other strings.
        "\x1b]0;title\a"s, "\x1b]0;title\x1b\\"s, "\x1b]8;;http://x\a"s, "\x1bPq#0;1;1\x1b\\"s,
        "\x1b_G\x1b\\"s, "\x1b^x\x1b\\"s,
        // Reset the terminal, choose another character set, and the like.
        "\033c"s, "\x1b(0"s, "\x1b#8"s, "\x1b="s, "\x1bM"s,
        // ESC [ and ESC ] in UTF-8.
        "\xc2\x9b"s, "\xc2\x9d"s,
        // Control characters.
        "\a"s, "\b"s, "\v"s, "\f"s, "\x7f"s, "\0"s, "\r"s, "\x0e"s}) {
    EXPECT_EQ(plain_line("a" + sequence + "b"), "ab") << ::testing::PrintToString(sequence);
  }
  // A line ends a sequence that is cut.
  for (const auto& cut : {"\x1b"s, "\x1b["s, "\x1b[31"s, "\x1b]0;title"s, "\x1b("s, "\xc2\x9b"s}) {
    EXPECT_EQ(plain_line("a" + cut), "a") << ::testing::PrintToString(cut);
  }
}

TEST(Output, OfPrefixedLinesMovesNoCursor) {
  const std::string script =
      "[ $LOCKSTEP_RANK = 0 ] && exit; printf 'a\\033[2Jb\\033[31mred\\033[0m\\n'; "
      "printf '\\033]0;owned\\007last words\\033[H\\n' >&2; exit 3";
  const auto ended = run_script(script);
  EXPECT_EQ(ended.out, "[1] ab\x1b[31mred\x1b[0m\n");
  EXPECT_THAT(ended.err, HasSubstr("[1] last words\n"));
  EXPECT_THAT(run_script(script, {"--quiet"}).err, HasSubstr("  | last words\n"));
}

// Readers that take nothing, or take it late.

class UnreadTerminal : public ::testing::Test {
 protected:
  UnreadTerminal() { ::mkfifo(fifo_.c_str(), 0600); }

  /// Ranks that write more than a terminal or a pipe holds, say so in a fifo, and go on as told.
  std::vector<std::string> ranks(int count, const std::string& then) const {
    return {"-n", std::to_string(count), "sh", "-c",
            concat("seq 40000; echo written > ", fifo_, "; ", then)};
  }
  /// Returns when so many ranks have written. The launcher has taken their output then.
  void await_ranks(std::size_t count) const {
    for (std::string text; text.size() < count * std::string("written\n").size();) {
      std::ifstream in(fifo_);
      for (std::string line; std::getline(in, line);) text += line + '\n';
    }
  }

  TemporaryFolder folder_;
  std::string fifo_ = (folder_ / "fifo").string();
};

class UnreadOutput : public UnreadTerminal, public ::testing::WithParamInterface<Unread::Out> {};

INSTANTIATE_TEST_SUITE_P(By, UnreadOutput,
                         ::testing::Values(Unread::Out::terminal, Unread::Out::pipe),
                         [](const auto& test) {
                           return test.param == Unread::Out::terminal ? "terminal" : "pipe";
                         });

TEST_P(UnreadOutput, LeavesTheLauncherItsSignals) {
  Unread job(GetParam(), ranks(2, "exec sleep 1000"));
  await_ranks(2);
  job.send(SIGINT);
  EXPECT_THAT(job.wait(),
              ends(128 + SIGINT, {"lockstep: ended by SIGINT, no rank is left\n",
                                  "lockstep: output was lost: stdout: its reader did not take "}));
}

TEST_P(UnreadOutput, HidesNoRankThatFails) {
  Unread job(GetParam(),
             ranks(2, concat("[ $LOCKSTEP_RANK = 1 ] && exit 3; trap 'echo stopped > ", fifo_,
                             "; exit 0' TERM; while :; do sleep 1000 & wait; done")));
  await_ranks(2);
  std::string word;
  std::ifstream(fifo_) >> word;  // of rank 0, that the launcher stops
  EXPECT_EQ(word, "stopped");
  job.send(SIGTERM);
  EXPECT_THAT(job.wait(), ends(3, {"rank 1 of 2 failed first: it ended with exit code 3",
                                   "output was lost: stdout: its reader did not take "}));
}

TEST_P(UnreadOutput, IsKeptForALateReader) {
  Unread job(GetParam(), ranks(2, ":"));
  await_ranks(2);
  auto text = job.read_all();
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.err, "");
  // A line of rank 1 may come within one of rank 0, whose bytes are shown at once on a terminal.
  text = std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m|[\r\n]"), "");  // colours, too
  std::size_t expected = 0;
  for (int i = 1; i <= 40000; ++i) expected += 2 * std::to_string(i).size() + 4;  // "[1] "
  EXPECT_EQ(text.size(), expected);
}

TEST_F(UnreadTerminal, SignalEndsTheWaitForItsReader) {
  Unread failing(Unread::Out::terminal, ranks(1, "sleep 1000"), /*stderr_too=*/true);
  await_ranks(1);
  failing.send(SIGTERM);
  EXPECT_EQ(failing.wait().code, 128 + SIGTERM);
  // The job goes well and its output waits for the reader without a limit.
  Unread job(Unread::Out::terminal, ranks(1, ":"));
  await_ranks(1);
  job.send(SIGTERM);
  EXPECT_THAT(job.wait(), ends(128 + SIGTERM, {"lockstep: "}));
}

}  // namespace
}  // namespace lockstep::testing
