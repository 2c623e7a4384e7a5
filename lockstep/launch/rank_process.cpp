#include "lockstep/launch/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep::launch {
namespace {

using detail::concat;

/// Strings as execve wants them.
class Words {
 public:
  void add(std::string word) { words_.push_back(std::move(word)); }
  char* const* get() {
    pointers_.clear();
    for (auto& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
    return pointers_.data();
  }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

Words arguments_of(const Plan& plan) {
  Words words;
  words.add(plan.options.program);
  for (const auto& argument : plan.options.arguments) words.add(argument);
  return words;
}

Words environment_of(const Plan& plan, const Variables& own) {
  Words words;
  for (const auto& [name, value] : plan.inherited) {
    const bool replaced = std::any_of(own.begin(), own.end(),
                                      [&](const auto& variable) { return variable.first == name; });
    if (!replaced) words.add(concat(name, '=', value));
  }
  for (const auto& [name, value] : own) words.add(concat(name, '=', value));
  return words;
}

void bind_to(const std::vector<int>& cpus) noexcept {
  if (cpus.empty()) return;
  std::array<cpu_set_t, 64> mask{};
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), sizeof(mask), mask.data());
  // CPUs may have been taken away since the plan was made: then the rank runs anywhere.
  sched_setaffinity(0, sizeof(mask), mask.data());
}

/// Only what may be done between fork and exec: system calls. Leaves errno in report when it
/// returns.
void become_rank(const char* program, char* const* arguments, char* const* environment,
                 const std::vector<int>& cpus, const StandardStreams& streams,
                 const Inheritance& inheritance, pid_t launcher) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // it died before the line above
  const pid_t self = getpid();
  if (write(inheritance.registry, &self, sizeof(self)) != sizeof(self)) return;
  if (dup2(streams.in, 0) < 0 || dup2(streams.out, 1) < 0 || dup2(streams.err, 2) < 0) return;
  if (dup2(inheritance.arena, arena_descriptor) < 0) return;
  if (inheritance.arena == arena_descriptor && fcntl(arena_descriptor, F_SETFD, 0) != 0) return;
  bind_to(cpus);
  inheritance.files.restore();
  inheritance.signals.restore();
  execve(program, arguments, environment);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? concat("SIG", name) : concat("signal ", signal);
}

std::string Ending::text() const {
  return by_signal ? signal_name(code) : concat("exit code ", code);
}

RankProcess::RankProcess(const Plan& plan, int rank, const StandardStreams& streams,
                         const Inheritance& inheritance)
    : program_(plan.program.string()) {
  const auto& own = plan.ranks[static_cast<std::size_t>(rank)];
  auto arguments = arguments_of(plan);
  auto environment = environment_of(plan, own.variables);
  char* const* argv = arguments.get();
  char* const* envp = environment.get();
  auto obstacle = make_pipe();
  const pid_t launcher = getpid();
  pid_ = fork();
  if (pid_ < 0) throw_system(concat("start rank ", rank));
  if (pid_ == 0) {
    become_rank(program_.c_str(), argv, envp, own.cpus, streams, inheritance, launcher);
    const int error = errno;
    const auto written = write(obstacle.write.get(), &error, sizeof(error));
    _exit(written == sizeof(error) ? 127 : 126);
  }
  setpgid(pid_, pid_);  // whoever comes first: signals must reach the group from here on
  obstacle_ = std::move(obstacle.read);
}

void RankProcess::await_program() {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(obstacle_.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  obstacle_.reset();
  if (got == sizeof(error)) {
    throw InvalidArgument(concat("cannot run '", program_, "': ", std::strerror(error)));
  }
}

std::optional<Ending> RankProcess::ending() const {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return Ending{.by_signal = info.si_code != CLD_EXITED, .code = info.si_status};
}

bool RankProcess::stopped() const {
  std::ifstream in(concat("/proc/", pid_, "/stat"));
  std::string line;
  std::getline(in, line);
  const auto name_end = line.rfind(')');  // the name before it may hold anything
  return name_end != std::string::npos && line.size() > name_end + 2 &&
         (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

bool RankProcess::signal_group(int signal) const noexcept { return killpg(pid_, signal) == 0; }

void RankProcess::reap() noexcept {
  while (waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace lockstep::launch
