#include "launch/process_state.h"

#include <filesystem>
#include <fstream>

#include "core/text.h"

namespace lockstep::inline v0_2::launch {

using detail::concat;

const char* state_text(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
    case 'I':
      return "sleeping";
    case 'D':
      return "in an uninterruptible wait of the kernel";
    case 'T':
      return "stopped by a signal";
    case 't':
      return "stopped by a debugger";
    case 'Z':
    case 'X':
      return "its first thread has ended";
    default:
      return "in an unknown state";
  }
}

std::string program_of(pid_t pid) {
  std::error_code none;
  return std::filesystem::read_symlink(concat("/proc/", pid, "/exe"), none).filename().string();
}

std::string kernel_wait_of(pid_t pid) {
  std::ifstream in(concat("/proc/", pid, "/wchan"));
  std::string name;
  in >> name;
  return name == "0" ? "" : name;
}

}  // namespace lockstep::launch
