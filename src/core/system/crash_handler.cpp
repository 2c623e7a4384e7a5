#include "core/system/crash_handler.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>

#include "core/environment.h"
#include "core/signal_safe_text.h"
#include "core/system/ticks.h"
#include "lockstep/error.h"

// Note [What happens in a crash]
// 1. A handler that the program or its runtime installed before runs first. If it returns and has
//    not restored the default action, it has resolved the fault, and nothing is recorded: runtimes
//    of other languages and write barriers use such faults. A handler that the program installs
//    later replaces this one. In a forked child, which is no rank, 3 follows.
// 2. Each listener of the first phase sends the failure to other ranks, each of the second phase
//    keeps a record.
// 3. The action of before is restored and the signal happens again: the instruction is repeated, or
//    the signal is sent again with its siginfo. Core dump and exit status are those of a process
//    without this handler.
// A timer repeats the signal if 2 takes too long or waits for a lock of the crashed thread. A crash
// or a signal of the timer during 2 goes to 3 at once.

namespace lockstep::inline v0_2::detail {

namespace {

constexpr std::array crash_signals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
/// A sanitizer reports crashes itself, and it may hide its handler from sigaction().
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

constexpr std::size_t most_listeners = 256;
constexpr std::size_t stack_bytes = std::size_t{64} << 10;
/// Longest time of the listeners.
constexpr std::chrono::seconds longest_handling{5};

SignalSafeText<1024> crash_cause;

/// Waits until another thread ends the process.
void await_end() noexcept {
  poll_until([] { return false; }, longest_handling);
}

/// The stack of the handler, so that it runs after a stack overflow. A thread that has one keeps
/// it.
class AlternateStack {
 public:
  AlternateStack() noexcept {
    stack_t now{};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    memory_ =
        ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;
    const stack_t own{.ss_sp = memory_, .ss_flags = 0, .ss_size = stack_bytes};
    ::sigaltstack(&own, nullptr);
  }
  ~AlternateStack() {
    stack_t now{};
    if (memory_ == MAP_FAILED || ::sigaltstack(nullptr, &now) != 0) return;
    if (now.ss_sp == memory_) {
      const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
      ::sigaltstack(&none, nullptr);
    }
    ::munmap(memory_, stack_bytes);
  }
  AlternateStack(const AlternateStack&) = delete;
  AlternateStack& operator=(const AlternateStack&) = delete;

 private:
  void* memory_ = MAP_FAILED;
};

// Of this process. Static memory: nothing is allocated in a crash.
std::array<struct sigaction, NSIG> previous_actions;
std::array<std::atomic<CrashListener*>, most_listeners> listeners;
std::atomic<pid_t> rank_process{0};     ///< that installed the handler: a forked child is no rank
std::atomic<pid_t> handling_thread{0};  ///< the thread whose crash is handled

void handle_crash(int signal, siginfo_t* info, void* context);

void install_handler() {
  rank_process.store(::getpid());
  for (const int number : crash_signals) {
    auto& previous = previous_actions[static_cast<std::size_t>(number)];
    if (::sigaction(number, nullptr, &previous) != 0 || previous.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_sigaction = handle_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigaction(number, &action, nullptr);
  }
}

bool is_installed(int signal) noexcept {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == handle_crash;
}

/// Whether the program's own handler, if any, has resolved the fault.
bool is_resolved(int signal, siginfo_t* info, void* context) {
  const auto& previous = previous_actions[static_cast<std::size_t>(signal)];
  if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) return false;
  // It may send the signal again, which must wait until the listeners have been called.
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else {
    previous.sa_handler(signal);
  }
  const bool resolved = is_installed(signal);
  if (resolved) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return resolved;
}

void repeat(int signal, siginfo_t* info) noexcept {
  const auto& previous = previous_actions[static_cast<std::size_t>(signal)];
  struct sigaction action {};
  const bool was_own = previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN;
  // A handler of the program has run already.
  action.sa_handler = was_own ? SIG_DFL : previous.sa_handler;
  ::sigaction(signal, &action, nullptr);
  // A fault happens again by itself, when the instruction is repeated.
  if (info->si_code > 0 && info->si_code != SI_KERNEL) return;
  // The signal arrives when the handler returns, so that a core dump shows the program's stack.
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), signal, info);
}

void limit_time(int signal) noexcept {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  int timer = 0;
  if (::syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) != 0) return;
  const itimerspec time{.it_interval = {},
                        .it_value = {.tv_sec = longest_handling.count(), .tv_nsec = 0}};
  ::syscall(SYS_timer_settime, timer, 0, &time, nullptr);
}

void handle_crash(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_rank = ::getpid() == rank_process.load();
  const auto handling = handling_thread.load();
  // A forked child is no rank, but has the program's handlers.
  if ((!is_rank || handling == 0) && is_resolved(signal, info, context)) {
    errno = error;
    return;
  }
  if (is_rank && handling != ::gettid()) {
    pid_t none = 0;
    if (handling_thread.compare_exchange_strong(none, ::gettid())) {
      limit_time(signal);
      const bool by_abort = signal == SIGABRT;
      CrashListener::call_all({.signal = signal,
                               .cause = by_abort ? crash_cause.view() : std::string_view(),
                               .context = static_cast<const ucontext_t*>(context),
                               .at = ticks()});
    } else {
      await_end();  // another thread crashed at the same time
    }
  }
  repeat(signal, info);
  errno = error;
}

}  // namespace

void set_crash_cause(std::string_view text) noexcept {
  crash_cause.clear();
  crash_cause << text;
}

void CrashListener::call_all(const Crash& crash) noexcept {
  for (const auto phase : {CrashListener::Phase::notify, CrashListener::Phase::record}) {
    for (const bool of_thread : {true, false}) {
      for (auto& place : listeners) {
        auto* const listener = place.load();
        if (listener == nullptr || listener->phase_ != phase) continue;
        if ((listener->thread_ == ::gettid()) == of_thread) listener->on_crash(crash);
      }
    }
  }
}

CrashListener::CrashListener(Phase phase) noexcept : phase_(phase), thread_(::gettid()) {
  static std::once_flag once;
  static bool is_on = false;
  try {
    std::call_once(once, [] {
      is_on = Environment::get().crash_handler && !is_sanitized;
      if (is_on) install_handler();
    });
  } catch (const InvalidArgument&) {
    // init() reports a variable that cannot be used.
  }
  if (!is_on) return;
  thread_local AlternateStack stack;
  for (std::size_t place = 0; place < listeners.size(); ++place) {
    CrashListener* none = nullptr;
    if (!listeners[place].compare_exchange_strong(none, this)) continue;
    place_ = place;
    is_listed_ = true;
    return;
  }
}

void CrashListener::stop_listening() noexcept {
  if (!is_listed_) return;
  is_listed_ = false;
  listeners[place_].store(nullptr);
  const auto handling = handling_thread.load();
  if (handling != 0 && handling != ::gettid() && ::getpid() == rank_process.load()) await_end();
}

}  // namespace lockstep::detail
