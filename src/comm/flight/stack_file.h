#pragma once

#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/flight/flight_record.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::detail {

/// The file in which a process leaves the stacks of its threads when the world fails. It begins
/// with a line "process PID"; thread_stacks.cpp describes the rest.
class StackFile {
 public:
  /// From now on, this process writes its stacks to the folder when it is asked to. Of several
  /// ranks of a process, only the first has a file.
  StackFile(const std::filesystem::path& folder, int rank);
  ~StackFile();
  StackFile(const StackFile&) = delete;
  StackFile& operator=(const StackFile&) = delete;

  /// Writes the file of this process, if there is one. Only the first call has an effect. context:
  /// of the signal handler that calls, or null. Async-signal-safe.
  static void write(const ucontext_t* context) noexcept;
  /// Waits while another thread of this process writes the file. Async-signal-safe, also in a
  /// signal handler of the thread that writes.
  static void await_other_writer() noexcept;

 private:
  struct Target;
  Target* target_ = nullptr;  ///< null if another rank of the process has the file
};

/// Asks the processes of this job's other ranks on this host for their stacks. Adds to `stopped`
/// the ranks whose processes are stopped, which cannot answer.
void request_stacks(std::string_view job, std::vector<int>& stopped) noexcept;

/// "rank-0.stacks".
std::string stack_file_name(int rank);

/// The content of a stack file.
struct ProcessStacks {
  struct Frame {
    std::uint64_t address;  ///< in the file, as `addr2line` takes it
    std::string file;       ///< empty for code that is in no file
  };
  struct Thread {
    long id;
    char state;  ///< as in /proc
    std::string name;
    bool has_answered;
    std::vector<Frame> frames;  ///< innermost first
  };
  long process = 0;  ///< 0 if there is no such file
  std::vector<Thread> threads;

  static ProcessStacks read(const std::filesystem::path& path);
};

}  // namespace lockstep::detail
