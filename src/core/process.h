#pragma once

#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// An entry of /proc.
struct Process {
  char state = 0;    ///< 'R', 'S', 'T' for stopped, …; 0 if there is no such process
  std::string name;  ///< of its program, at most 15 bytes
  long parent = 0;   ///< its pid
  long group = 0;    ///< its process group
  std::chrono::milliseconds processor_time{};  ///< of all its threads
  std::string start;                           ///< when it started, in the kernel's ticks

  bool exists() const { return state != 0; }
  /// Stopped by a signal or by a debugger.
  bool stopped() const { return state == 'T' || state == 't'; }
};

Process read_process(long pid);

/// Whether the process was started with one of the environment variables.
bool has_variable(long pid, std::initializer_list<std::string_view> names);

/// The nearest ancestor of this process that was started without the environment variable; 1 or
/// less where there is none.
long ancestor_without(const std::string& variable);

}  // namespace lockstep::detail
