#include "launch/job/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/environment.h"
#include "core/system/files.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

void bind_to(const std::vector<int>& cpus) noexcept {
  if (cpus.empty()) return;
  std::array<cpu_set_t, 64> mask{};
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), sizeof(mask), mask.data());
  // This fails if CPUs were removed since the plan was made; the rank is then not bound.
  sched_setaffinity(0, sizeof(mask), mask.data());
}

/// Makes the descriptor available to the executed program under this number.
bool inherit_as(int file, int number) noexcept {
  return file == number ? fcntl(number, F_SETFD, 0) == 0 : dup2(file, number) >= 0;
}

/// The text that a rank writes to /proc/self/oom_score_adj, so that the kernel kills ranks before
/// the launcher, which can report it.
std::string oom_score() {
  constexpr int raise = 300;  // as if the rank used 30 % of the memory more
  constexpr int most = 1000;
  const auto own = detail::parse_number<int>(detail::first_line("/proc/self/oom_score_adj"));
  return std::to_string(std::min(own.value_or(0) + raise, most));
}

void write_file(const char* path, const char* text, std::size_t length) noexcept {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const auto written = write(file, text, length);
  close(file);
}

/// These two functions run in the child between fork() and execve(): system calls only.
void join_group(int registry, pid_t launcher, const std::string& score) noexcept {
  setpgid(0, 0);
  write_file("/proc/self/oom_score_adj", score.data(), score.size());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // the launcher ended before prctl()
  const pid_t self = getpid();
  [[maybe_unused]] const auto written = write(registry, &self, sizeof(self));
}

/// False on an error, with errno set.
bool inherit(const Inheritance& inheritance, int rank, int in, const WriteEnds& streams) noexcept {
  return dup2(in, 0) >= 0 && dup2(streams.out.get(), 1) >= 0 && dup2(streams.err.get(), 2) >= 0 &&
         inherit_as(inheritance.arena.get(), arena_descriptor) &&
         (rank > 0 || !inheritance.listening ||
          inherit_as(inheritance.listening.get(), listen_descriptor));
}

unsigned long files_needed(int ranks) {
  constexpr unsigned long own = 64;
  constexpr unsigned long of_each_rank = 7;
  return listen_descriptor + own + of_each_rank * static_cast<unsigned long>(ranks);
}

}  // namespace

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_of(const Variables& inherited, const Variables& own) {
  std::vector<std::string> words;
  for (const auto& [name, value] : inherited) {
    if (find_variable(own, name) == nullptr) words.push_back(concat(name, '=', value));
  }
  for (const auto& [name, value] : own) words.push_back(concat(name, '=', value));
  return words;
}

Inheritance::Inheritance(int ranks, const SignalWatch& watch, Descriptor rank_0_listens)
    : world(host::World::create(ranks)),
      files(files_needed(ranks)),
      // Before other descriptors are opened, so that none gets this number.
      arena(fcntl(world->fd(), F_DUPFD_CLOEXEC, arena_descriptor)),
      listening(rank_0_listens
                    ? Descriptor(fcntl(rank_0_listens.get(), F_DUPFD_CLOEXEC, listen_descriptor))
                    : Descriptor()),
      null(open("/dev/null", O_RDONLY | O_CLOEXEC)),
      signals(watch) {
  if (!arena) throw_system("hand on the world's memory");
  if (!null) throw_system("open /dev/null");
}

RankProcess::RankProcess(const Plan& plan, int rank, const WriteEnds& streams,
                         const Inheritance& inheritance, int registry)
    : program_(plan.program.string()) {
  const auto& own = plan.ranks[static_cast<std::size_t>(rank)];
  std::vector<std::string> arguments{plan.options.program};
  arguments.insert(arguments.end(), plan.options.arguments.begin(), plan.options.arguments.end());
  auto environment = environment_of(plan.inherited, own.variables);
  const auto argv = pointers_to(arguments);
  const auto envp = pointers_to(environment);
  const auto score = oom_score();
  // Ranks may not read from a terminal, because they are not in its foreground process group.
  const bool reads =
      plan.options.reads_stdin && plan.first_rank + rank == 0 && isatty(STDIN_FILENO) == 0;
  const int in = reads ? STDIN_FILENO : inheritance.null.get();
  auto exec_error = make_pipe();
  const pid_t launcher = getpid();
  pid_ = fork();
  if (pid_ < 0) throw_system(concat("start rank ", plan.first_rank + rank));
  if (pid_ == 0) {
    join_group(registry, launcher, score);
    if (inherit(inheritance, rank, in, streams)) {
      bind_to(own.cpus);
      inheritance.files.restore();
      inheritance.signals.restore();
      execve(program_.c_str(), argv.data(), envp.data());
    }
    const int error = errno;
    const auto written = write(exec_error.write.get(), &error, sizeof(error));
    _exit(written == sizeof(error) ? 127 : 126);
  }
  setpgid(pid_, pid_);  // here and in the child, so that signals to the group work from now on
  exec_error_ = std::move(exec_error.read);
  fcntl(exec_error_.get(), F_SETFL, O_NONBLOCK);
}

void RankProcess::check_start() {
  if (!exec_error_) return;
  int error = 0;
  const auto got = read(exec_error_.get(), &error, sizeof(error));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  exec_error_.reset();
  if (got == sizeof(error)) {
    throw InvalidArgument(concat("cannot run '", program_, "': ", std::strerror(error)));
  }
}

bool RankProcess::stopped() const {
  return detail::read_process(pid_).state == 'T';  // by a signal, not by a debugger
}

bool RankProcess::handles(int signal) const {
  const auto has = [](std::uint64_t set, int number) { return (set >> (number - 1) & 1) != 0; };
  const auto set_of = [&](const char* key) -> std::uint64_t {
    return std::strtoull(detail::process_status(pid_, key).c_str(), nullptr, 16);
  };
  // Shells and the C library block all signals while they fork, SIGSEGV, too.
  const auto blocked = set_of("SigBlk");
  return has(set_of("SigCgt") | set_of("SigIgn"), signal) ||
         (has(blocked, signal) && !has(blocked, SIGSEGV));
}

bool RankProcess::signal_group(int signal) const noexcept { return killpg(pid_, signal) == 0; }

void RankProcess::reap() noexcept {
  while (waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace lockstep::launch
