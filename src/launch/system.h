#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/system/process.h"

namespace lockstep::inline v0_2::launch {

using detail::Descriptor;

/// The two ends of a pipe, both close-on-exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};

/// Creates a pipe.
/// Throws: CommError if the process cannot open more files.
Pipe make_pipe();

/// Throws a CommError: "the launcher cannot WHAT: " and the text of errno.
[[noreturn]] void throw_system(std::string_view what);

/// The limit of open files of this process: raises the soft limit to `needed`, and restores it on
/// destruction.
class FileLimit {
 public:
  /// Throws: CommError if the hard limit is below `needed`.
  explicit FileLimit(unsigned long needed);
  ~FileLimit();
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  /// For a forked child: restores the limit with which the launcher was started.
  void restore() const noexcept;

 private:
  unsigned long soft_ = 0;
  unsigned long hard_ = 0;
  bool raised_ = false;
};

/// Orphaned descendants of this process become its children until destruction.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

/// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed, so that no pipe gets its
/// number.
void open_standard_descriptors();

/// The file of a program: the name itself if it contains a slash, else the first match in the
/// folders of search_path.
/// Throws: InvalidArgument naming the program and the reason why it cannot be executed.
std::filesystem::path find_program(const std::string& name, std::string_view search_path);

}  // namespace lockstep::launch
