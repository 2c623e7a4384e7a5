#include "tests/launch/launched.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <sstream>

#include "comm/control/address.h"
#include "comm/flight/flight_record.h"

namespace lockstep::testing {
namespace {

std::vector<char*> pointers(Words& words) {
  std::vector<char*> all;
  for (auto& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

Words environment_with(const Launched::Variables& variables) {
  Words words;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string word(*entry);
    if (!variables.contains(word.substr(0, word.find('=')))) words.push_back(word);
  }
  for (const auto& [name, value] : variables) words.push_back(name + "=" + value);
  return words;
}

::testing::Matcher<std::string> has(const std::vector<std::string>& said,
                                    const std::vector<std::string>& unsaid) {
  std::vector<::testing::Matcher<std::string>> texts;
  for (const auto& text : said) texts.emplace_back(HasSubstr(text));
  for (const auto& text : unsaid) texts.emplace_back(Not(HasSubstr(text)));
  return ::testing::AllOfArray(texts);
}

}  // namespace

Words words_of(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word == "''" ? "" : word);
  return words;
}

std::string free_port() { return std::to_string(control::lasting_port()); }

std::string lockstep_program() { return LOCKSTEP_BINARY_DIR "/lockstep"; }
std::string rank_program() { return LOCKSTEP_BINARY_DIR "/launch_rank_program"; }

std::string write_program(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path.string();
}

Launched::Launched(const Words& command, const Variables& variables, Outputs given)
    : start_(std::chrono::steady_clock::now()) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Descriptors that the test itself inherited must not count as Lockstep's.
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe2 failed");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, given.out >= 0 ? given.out : out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, given.err >= 0 ? given.err : err[1], STDERR_FILENO);
  if (given.kept >= 0) posix_spawn_file_actions_adddup2(&actions, given.kept, Outputs::kept_as);
  auto words = command;
  auto environment = environment_with(variables);
  // A shell's background jobs ignore Ctrl-C, and lockstep would, too.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &interrupt);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(&pid_, words.front().c_str(), &actions, &attributes,
                                 pointers(words).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(out[1]);
  close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  if (error != 0) throw std::runtime_error("cannot start " + command.front());
}

Launched::~Launched() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  }
  close_output();
  close(err_fd_);
}

void Launched::await_output(const std::string& text, int times) {
  const auto occurrences = [&] {
    int count = 0;
    for (auto at = out_.find(text); at != std::string::npos; at = out_.find(text, at + 1)) ++count;
    return count;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  while (occurrences() < times) {
    if (std::chrono::steady_clock::now() > end || !read_some(true)) {
      FAIL() << "output ended, or 3 minutes passed, before '" << text << "' came " << times
             << " times: " << out_ << err_;
    }
  }
}

bool Launched::await_error(const std::string& text) {
  while (err_.find(text) == std::string::npos) {
    if (!read_some(false)) return false;
  }
  return true;
}

void Launched::close_output() {
  if (out_fd_ >= 0) close(out_fd_);
  out_fd_ = -1;
}

bool Launched::read_some(bool stdout_only) {
  constexpr int three_minutes = 180'000;
  std::array<pollfd, 2> waiting{{{.fd = out_fd_, .events = POLLIN, .revents = 0},
                                 {.fd = err_fd_, .events = POLLIN, .revents = 0}}};
  if (poll(waiting.data(), waiting.size(), three_minutes) <= 0) return false;
  bool any = false;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i].revents == 0) continue;
    std::array<char, 1 << 16> buffer;
    const auto count = read(waiting[i].fd, buffer.data(), buffer.size());
    if (count > 0) {
      (i == 0 ? out_ : err_).append(buffer.data(), static_cast<std::size_t>(count));
      any = true;
    } else if (i == 0) {
      close_output();
      if (stdout_only) return false;
    } else {
      close(err_fd_);
      err_fd_ = -1;
    }
  }
  return any || out_fd_ >= 0 || err_fd_ >= 0;
}

Ended Launched::wait() {
  while (out_fd_ >= 0 || err_fd_ >= 0) read_some(false);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  return {.pid = std::exchange(pid_, -1),
          .by_signal = WIFSIGNALED(status),
          .code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
          .out = out_,
          .err = err_,
          .seconds = std::chrono::steady_clock::now() - start_};
}

Ended Launched::wait_for_all() {
  auto ended = wait();
  EXPECT_FALSE(anything_left());
  return ended;
}

::testing::Matcher<const Ended&> ends(int code, const std::vector<std::string>& said,
                                      const std::vector<std::string>& unsaid) {
  return AllOf(::testing::Field("code", &Ended::code, code),
               ::testing::Field("err", &Ended::err, has(said, unsaid)));
}

::testing::Matcher<const Ended&> prints(const std::vector<std::string>& said,
                                        const std::vector<std::string>& unsaid) {
  return AllOf(::testing::Field("code", &Ended::code, 0),
               ::testing::Field("out", &Ended::out, has(said, unsaid)));
}

void PrintTo(const Ended& ended, std::ostream* out) {
  *out << "code " << ended.code << ", stdout:\n" << ended.out << "stderr:\n" << ended.err;
}

Words in_shell(const std::string& words, const std::string& before) {
  return {"/bin/sh", "-c", concat(before, "exec ", quoted(lockstep_program()), ' ', words)};
}

Ended run_in_shell(const std::string& words, const std::string& before) {
  return Launched(in_shell(words, before)).wait_for_all();
}

Ended run_cli(const Words& words, const Launched::Variables& variables) {
  return Launched(joined({lockstep_program()}, {words}), variables).wait();
}

Words run_command(const Words& arguments) {
  return joined({lockstep_program(), "run"}, {arguments});
}

Ended run_lockstep(const Words& arguments, const Launched::Variables& variables) {
  return Launched(run_command(arguments), variables).wait_for_all();
}

bool anything_left() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool await_all_ended(std::chrono::seconds limit) {
  struct sigaction interrupting {};
  interrupting.sa_handler = [](int) {};  // without SA_RESTART: it ends waitpid
  sigaction(SIGALRM, &interrupting, nullptr);
  alarm(static_cast<unsigned>(limit.count()));
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  const bool in_time = errno == ECHILD;
  alarm(0);
  return in_time;
}

std::vector<pid_t> numbers_after(const std::string& text, const std::string& word) {
  std::vector<pid_t> numbers;
  const auto key = word + " ";
  for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    numbers.push_back(std::atoi(text.c_str() + at + key.size()));
  }
  return numbers;
}

std::string name_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(in, name);
  return name;
}

std::set<pid_t> children_of(pid_t parent) {
  std::set<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream in(entry.path() / "status");
    for (std::string line; std::getline(in, line);) {
      if (line == "PPid:\t" + std::to_string(parent))
        found.insert(std::stoi(entry.path().filename()));
    }
  }
  return found;
}

std::vector<pid_t> guardians_of(pid_t launcher) {
  std::vector<pid_t> found;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (found.empty() && std::chrono::steady_clock::now() < limit) {
    for (const auto pid : children_of(launcher)) {
      if (name_of(pid) == "lockstep-guard") found.push_back(pid);
    }
  }
  return found;
}

std::set<std::filesystem::path> shared_memory_names() {
  std::set<std::filesystem::path> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    const auto name = entry.path().filename().string();
    if (name.find("lockstep") != std::string::npos && entry.path().extension() != ".flight") {
      names.insert(entry.path());
    }
  }
  return names;
}

std::set<std::filesystem::path> flight_records(pid_t launcher) {
  std::set<std::filesystem::path> paths;
  for (const auto& record : detail::read_flight_records()) {
    if (record->file().parent == launcher) paths.insert(record->path());
  }
  return paths;
}

}  // namespace lockstep::testing
