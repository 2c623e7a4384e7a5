#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>

#include "tests/message_of.h"

namespace lockstep::testing {

/// The output or error of fn in a child of this process, and how the child has ended if not with 0.
inline std::string in_child(const std::function<std::string()>& fn) {
  int ends[2];
  if (::pipe(ends) != 0) return "pipe() failed";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    const auto error = message_of<std::exception>([&] { text = fn(); });
    text += error;
    const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = -1;  // if fork() has failed
  ::waitpid(child, &status, 0);
  return status == 0 ? text : text + "; the child ended with status " + std::to_string(status);
}

}  // namespace lockstep::testing
