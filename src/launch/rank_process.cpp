#include "launch/rank_process.h"

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
#include <locale>

#include "core/process.h"
#include "core/text.h"
#include "launch/children.h"
#include "launch/output.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

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

/// Makes the file one of this number that an executed program inherits.
bool hand_on(int file, int number) noexcept {
  return file == number ? fcntl(number, F_SETFD, 0) == 0 : dup2(file, number) >= 0;
}

/// The text that a rank writes to /proc/self/oom_score_adj. The kernel is to end ranks before their
/// launcher, which can say what happened.
std::string oom_score() {
  constexpr int raise = 300;  // as if it used so many thousandths of the memory more
  constexpr int most = 1000;
  int own = 0;
  std::ifstream in("/proc/self/oom_score_adj");
  in.imbue(std::locale::classic());
  in >> own;
  return std::to_string(std::min(own + raise, most));
}

void write_file(const char* path, const char* text, std::size_t length) noexcept {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const auto written = write(file, text, length);
  close(file);
}

/// Only what may be done between fork and exec: system calls. Leaves errno in report when it
/// returns.
void become_rank(const char* program, char* const* arguments, char* const* environment,
                 const std::vector<int>& cpus, const StandardStreams& streams,
                 const Inheritance& inheritance, const std::string& score, pid_t launcher) {
  setpgid(0, 0);
  write_file("/proc/self/oom_score_adj", score.data(), score.size());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // it died before the line above
  // Where the guardian has just ended, the launcher adds this process to the next one.
  const pid_t self = getpid();
  [[maybe_unused]] const auto written = write(inheritance.registry, &self, sizeof(self));
  if (dup2(streams.in, 0) < 0 || dup2(streams.out, 1) < 0 || dup2(streams.err, 2) < 0) return;
  if (!hand_on(inheritance.arena, arena_descriptor)) return;
  if (!hand_on(inheritance.errors, error_descriptor)) return;
  bind_to(cpus);
  inheritance.files.restore();
  inheritance.signals.restore();
  execve(program, arguments, environment);
}

}  // namespace

RankProcess::RankProcess(const Plan& plan, int rank, const StandardStreams& streams,
                         const Inheritance& inheritance)
    : program_(plan.program.string()) {
  const auto& own = plan.ranks[static_cast<std::size_t>(rank)];
  auto arguments = arguments_of(plan);
  auto environment = environment_of(plan, own.variables);
  char* const* argv = arguments.get();
  char* const* envp = environment.get();
  const auto score = oom_score();
  auto obstacle = make_pipe();
  const pid_t launcher = getpid();
  pid_ = fork();
  if (pid_ < 0) throw_system(concat("start rank ", rank));
  if (pid_ == 0) {
    become_rank(program_.c_str(), argv, envp, own.cpus, streams, inheritance, score, launcher);
    const int error = errno;
    const auto written = write(obstacle.write.get(), &error, sizeof(error));
    _exit(written == sizeof(error) ? 127 : 126);
  }
  setpgid(pid_, pid_);  // here and in the child: signals must reach the group from here on
  obstacle_ = std::move(obstacle.read);
  fcntl(obstacle_.get(), F_SETFL, O_NONBLOCK);
}

bool RankProcess::started() {
  if (!obstacle_) return true;
  int error = 0;
  const auto got = read(obstacle_.get(), &error, sizeof(error));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  obstacle_.reset();
  if (got == sizeof(error)) {
    throw InvalidArgument(concat("cannot run '", program_, "': ", std::strerror(error)));
  }
  return true;
}

std::optional<Ending> RankProcess::ending() const { return ending_of(pid_); }

bool RankProcess::stopped() const {
  return detail::read_process(pid_).state == 'T';  // by a signal, not by a debugger
}

bool RankProcess::signal_group(int signal) const noexcept { return killpg(pid_, signal) == 0; }

bool RankProcess::await_end(std::chrono::steady_clock::time_point until) const noexcept {
  return launch::await_end(pid_, until);
}

void RankProcess::reap() noexcept {
  while (waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace lockstep::launch
