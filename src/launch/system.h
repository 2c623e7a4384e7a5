#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/process.h"

namespace lockstep::inline v0_2::launch {

using detail::Descriptor;

/// The two ends of a pipe, both close-on-exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};

/// Throws: CommError when the process may open no more files.
Pipe make_pipe();

/// Throws CommError: what the launcher could not do, and errno's text.
[[noreturn]] void throw_system(std::string_view what);

/// Files this process may have open at once: raises the soft limit towards needed, and puts the old
/// one back at the end.
class FileLimit {
 public:
  /// Throws: CommError when the hard limit is lower than needed.
  explicit FileLimit(unsigned long needed);
  ~FileLimit();
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  /// Gives a forked child the limit that the launcher was started with.
  void restore() const noexcept;

 private:
  unsigned long soft_ = 0;
  unsigned long hard_ = 0;
  bool raised_ = false;
};

/// Orphans among this process's descendants become its children, as long as this lives.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

/// Makes sure that descriptors 0, 1 and 2 are open, so that no pipe takes their numbers.
void open_standard_descriptors();

/// The file that a program's name stands for: itself if it has a slash, else the first match in the
/// folders of search_path. Throws: InvalidArgument naming the program and why it cannot be
/// executed.
std::filesystem::path find_program(const std::string& name, std::string_view search_path);

}  // namespace lockstep::launch
