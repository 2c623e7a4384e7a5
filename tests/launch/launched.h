#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/text.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {

using lockstep::detail::concat;
using Words = std::vector<std::string>;
/// The words of a text that blanks separate. '' is an empty one.
Words words_of(const std::string& text);
inline Words joined(Words words, const std::vector<Words>& others) {
  for (const auto& one : others) words.insert(words.end(), one.begin(), one.end());
  return words;
}

/// Paths of the lockstep program and of the test program whose argument selects a misbehaviour.
std::string lockstep_program();
std::string rank_program();
/// For the shell, whatever folder it is in.
inline std::string quoted(const std::string& path) { return "'" + path + "'"; }

/// Whether this is a build with a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

/// Writes a program that can be executed. Returns its path.
std::string write_program(const std::filesystem::path& path, const std::string& text);

/// A TCP port that no socket of this host has, and that no outgoing connection gets.
std::string free_port();

/// The exit of a started program.
struct Ended {
  pid_t pid = -1;
  bool by_signal = false;
  int code = -1;  ///< exit code, or signal
  std::string out;
  std::string err;
  std::chrono::duration<double> seconds{};  ///< from the start
};

/// Descriptors that take the place of a program's stdout and stderr, and one that it inherits.
struct Outputs {
  static constexpr int kept_as = 100;
  int out = -1;
  int err = -1;
  int kept = -1;
};

/// A program started as a user would, with its outputs in pipes or in what is given. Orphans it
/// leaves become children of the test.
class Launched {
 public:
  using Variables = std::map<std::string, std::string>;

  explicit Launched(const Words& command, const Variables& variables = {}, Outputs given = {});
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  /// Reads stdout until it holds text so many times. Fails the test if stdout ends before, or
  /// 3 minutes pass.
  void await_output(const std::string& text, int times = 1);
  /// The same for stderr, once. False if both outputs end before.
  bool await_error(const std::string& text);
  const std::string& output() const { return out_; }
  /// Closes the read end of its stdout.
  void close_output();
  Ended wait();
  /// The same, and expects that anything_left() is false.
  Ended wait_for_all();

 private:
  bool read_some(bool stdout_only);

  std::chrono::steady_clock::time_point start_;
  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

/// Matches an end with this exit code whose stderr has all these texts, and none of those.
::testing::Matcher<const Ended&> ends(int code, const std::vector<std::string>& said,
                                      const std::vector<std::string>& unsaid = {});
/// Matches one with exit code 0 whose stdout has all these texts, and none of those.
::testing::Matcher<const Ended&> prints(const std::vector<std::string>& said,
                                        const std::vector<std::string>& unsaid = {});
void PrintTo(const Ended& ended, std::ostream* out);

/// The command of a shell that becomes `lockstep` with these words.
/// before: as "ulimit -c 0; ".
Words in_shell(const std::string& words, const std::string& before = "");
/// Runs it to its end, after which no process is left.
Ended run_in_shell(const std::string& words, const std::string& before = "");

/// Runs `lockstep` with these words to its end.
Ended run_cli(const Words& words, const Launched::Variables& variables = {});
/// `lockstep run` with these arguments.
Words run_command(const Words& arguments);
/// Runs it to its end, after which no process is left.
Ended run_lockstep(const Words& arguments, const Launched::Variables& variables = {});

/// Whether any process is left that the test or what it started has started. Ended ones count:
/// someone had to reap them.
bool anything_left();

/// Waits for every process that is left to end. False when that takes more than limit.
bool await_all_ended(std::chrono::seconds limit);

/// The numbers after each occurrence of word in text: "pid 12", "pid 13".
std::vector<pid_t> numbers_after(const std::string& text, const std::string& word);

/// A process's name, and its children.
std::string name_of(pid_t pid);
std::set<pid_t> children_of(pid_t parent);
/// The guardian processes among a launcher's children. Waits up to 5 s for the first: a guardian
/// names itself, maybe after ranks have begun.
std::vector<pid_t> guardians_of(pid_t launcher);

/// Names in /dev/shm that contain Lockstep's name, except flight records: other tests' ranks have
/// some at the same time.
std::set<std::filesystem::path> shared_memory_names();
/// The flight records in /dev/shm of the ranks that this launcher started.
std::set<std::filesystem::path> flight_records(pid_t launcher);

/// A command line that must be refused, and words of the refusal.
struct Refused {
  std::string arguments;  ///< as words_of() takes them
  Words said;
  Launched::Variables variables = {};
};

/// That each of these, after the first words, is one error of usage and starts nothing.
inline void expect_refused(const Words& first, const std::vector<Refused>& commands) {
  for (const auto& command : commands) {
    SCOPED_TRACE(command.arguments);
    const auto ended =
        Launched(joined(first, {words_of(command.arguments)}), command.variables).wait_for_all();
    EXPECT_THAT(ended, ends(2, command.said, {"restart 1", "bad_alloc"}));
    EXPECT_EQ(ended.out, "");
  }
}

}  // namespace lockstep::testing
