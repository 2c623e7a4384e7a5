#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::inline v0_2::detail {

/// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  /// Gives the descriptor to the caller, who closes it.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Waits until a descriptor of the epoll instance is ready, for at most `longest`. Whether one is.
bool await_event(int events, std::chrono::nanoseconds longest);

/// The signal that asks a thread for its stack (thread_stacks.h).
int stack_signal();

/// Blocks signals for threads that are created in its scope, so that the program's own threads
/// handle them. Not stack_signal(), and not faults of the thread itself: the kernel ends a process
/// that blocks them, without a call of its handlers.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int own : {stack_signal(), SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::sigdelset(&all, own);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// Distinguishes the process that constructed it from its forked children. Only the process that
/// joined a world is a rank; a child shares its memory and sockets but is not a rank.
class ForkGuard {
 public:
  ForkGuard();
  /// Costs one load.
  bool in_child() const noexcept { return forks_.load(std::memory_order_relaxed) != made_at_; }

 private:
  /// Forks between this process and the first process of the program.
  static std::atomic<unsigned> forks_;
  unsigned made_at_;
};

/// A process, as described in /proc.
struct Process {
  char state = 0;    ///< 'R', 'S', 'T' for stopped, …; 0 if there is no such process
  std::string name;  ///< name of its program, at most 15 bytes
  long parent = 0;   ///< its pid
  long group = 0;    ///< its process group
  std::chrono::milliseconds processor_time{};  ///< user and system time of all its threads
  std::string start;                           ///< start time in clock ticks since boot

  bool exists() const { return state != 0; }
  /// Stopped by a signal or by a debugger.
  bool stopped() const { return state == 'T' || state == 't'; }
};

Process read_process(long pid);

/// The value of a line of /proc/PID/status, such as "CoreDumping"; empty if there is none.
std::string process_status(long pid, const std::string& key);

/// The resident memory of a process in bytes; -1 if there is no such process.
long resident_bytes(long pid);

/// Identifies this process's pid namespace; 0 if it is unknown. In another namespace, the same pid
/// is another process.
std::uint64_t pid_namespace();

/// Whether the kernel writes the core dump of the process.
bool is_dumping_core(long pid);

/// The pid of the nearest ancestor of this process that was started without the environment
/// variable; 1 or less if there is none.
long ancestor_without(const std::string& variable);

}  // namespace lockstep::detail
