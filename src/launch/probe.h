#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep::inline v0_2::launch {

/// The result of a function in a child process, or the reason why there is none.
struct Probed {
  std::string text;
  std::string problem;  ///< empty: the function returned
};

/// Calls the function in a forked child and returns its text. The function may load libraries that
/// must not stay in this process; a crash or a hang of theirs is a `problem`. Its standard output
/// is standard error.
///
/// A child is necessary for CUDA: a process that called cuInit() cannot use CUDA in its forked
/// children, and the launcher forks its ranks. For a program with one thread, whose child may call
/// any function.
///
/// Throws: CommError if the system refuses a pipe or a process.
Probed probe(const std::function<std::string()>& function, std::chrono::milliseconds limit);

}  // namespace lockstep::launch
