#pragma once

#include <sys/types.h>
#include <ucontext.h>

#include <chrono>

#include "core/system/process.h"

namespace lockstep::inline v0_2::detail {

/// Longest time that the threads of a process have to answer with their stacks.
inline constexpr std::chrono::milliseconds stack_timeout{200};

/// Installs the handler of stack_signal() (process.h), which asks a thread for its stack and a
/// process for those of all its threads. on_request is called in a handler when another process
/// of the user asks for stacks. False if the program itself uses the signal.
bool prepare_thread_stacks(void (*on_request)(const ucontext_t* context));

/// Writes the stack of every thread of this process to a descriptor. Note [What a file of stacks
/// holds] is in thread_stacks.cpp. context: of the signal handler that calls, or null. Takes
/// stack_timeout and the time of the writes at most. Async-signal-safe. False if another thread
/// does it at this moment, or if a write fails.
bool write_thread_stacks(int fd, const ucontext_t* context) noexcept;

/// A question to a process for the stacks of its threads. Between construction and send(), the
/// caller checks that the pid is that of the process that it means.
class StackRequest {
 public:
  explicit StackRequest(pid_t process);
  /// Asks the process, if it has a handler for that: the signal ends other processes.
  void send() const;

 private:
  pid_t process_;
  Descriptor fd_;  ///< of the process, whatever becomes of its pid
};

}  // namespace lockstep::detail
