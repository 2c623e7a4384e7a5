#include "core/system/process.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <iterator>
#include <locale>
#include <sstream>

#include "core/system/files.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

bool await_event(int events, std::chrono::nanoseconds longest) {
  using std::chrono::milliseconds;
  const timespec time{.tv_sec = longest.count() / 1'000'000'000,
                      .tv_nsec = longest.count() % 1'000'000'000};
  epoll_event ready{};
  int count = ::epoll_pwait2(events, &ready, 1, &time, nullptr);
  // Linux before 5.11 has no such call, and a filter of system calls may forbid it.
  if (count < 0 && errno != EINTR) {
    const auto rounded = std::max(std::chrono::ceil<milliseconds>(longest), milliseconds(1));
    count = ::epoll_wait(events, &ready, 1, static_cast<int>(rounded.count()));
  }
  return count > 0;
}

// SIGRTMIN and the signals next to it and to SIGRTMAX are used by runtimes and debuggers.
int stack_signal() { return SIGRTMAX - 3; }

std::atomic<unsigned> ForkGuard::forks_{0};

ForkGuard::ForkGuard() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
  made_at_ = forks_.load(std::memory_order_relaxed);
}

Process read_process(long pid) {
  const auto line = first_line(concat("/proc/", pid, "/stat"));
  // The name in brackets may contain spaces. Fields are numbered from 1; the start time is field
  // 22.
  const auto behind_name = line.rfind(')');
  Process process;
  if (behind_name == std::string::npos) return process;
  const auto name = line.find('(') + 1;
  process.name = line.substr(name, behind_name - name);
  std::istringstream fields(line.substr(behind_name + 1));
  std::string field;
  long ticks = 0;
  for (int number = 3; fields >> field; ++number) {
    if (number == 3) process.state = field.front();
    if (number == 4) process.parent = std::stol(field);
    if (number == 5) process.group = std::stol(field);
    if (number == 14 || number == 15) ticks += std::stol(field);  // user, then system
    if (number == 22) process.start = field;
  }
  process.processor_time = std::chrono::milliseconds(ticks * 1000 / ::sysconf(_SC_CLK_TCK));
  return process;
}

std::string process_status(long pid, const std::string& key) {
  return fields(concat("/proc/", pid, "/status"))[key];
}

long resident_bytes(long pid) {
  std::ifstream in(concat("/proc/", pid, "/statm"));
  in.imbue(std::locale::classic());
  long total = 0;
  long resident = 0;
  if (!(in >> total >> resident)) return -1;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::uint64_t pid_namespace() {
  struct stat found {};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

bool is_dumping_core(long pid) { return process_status(pid, "CoreDumping") == "1"; }

namespace {

bool has_variable(long pid, const std::string& name) {
  std::ifstream in(concat("/proc/", pid, "/environ"), std::ios::binary);
  const auto all = concat('\0', std::string{std::istreambuf_iterator<char>(in), {}});
  return all.find(concat('\0', name, '=')) != std::string::npos;
}

}  // namespace

long ancestor_without(const std::string& variable) {
  long pid = ::getppid();
  while (pid > 1 && has_variable(pid, variable)) pid = read_process(pid).parent;
  return pid;
}

}  // namespace lockstep::detail
