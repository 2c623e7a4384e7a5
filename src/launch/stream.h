#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "launch/logs.h"
#include "launch/output.h"
#include "launch/pipe.h"

namespace lockstep::inline v0_2::launch {

/// The last lines that went by.
class Tail {
 public:
  void add(std::string_view bytes);
  bool empty() const { return bytes_.empty(); }
  /// At most count lines, oldest first, without their ends; of very long ones only the end.
  std::vector<std::string> lines(std::size_t count) const;

 private:
  std::string bytes_;
};

/// How a stream of a rank is shown.
enum class Show {
  nothing,  ///< --quiet
  bytes,    ///< at once and unchanged, as on a terminal
  lines,    ///< unchanged, but other ranks' lines come between lines only
  prefixed  ///< line by line, each after "[rank] " and as plain_line() leaves it
};

/// One rank's stdout or stderr on its way to the launcher's own, to a log file and to the last
/// lines of a report.
class Stream {
 public:
  Stream(Descriptor source, Show show, std::string prefix, Output& output, Log log);

  int fd() const { return source_.get(); }
  bool open() const { return static_cast<bool>(source_); }
  const Output& output() const { return output_; }
  const Tail& tail() const { return tail_; }
  const Log& log() const { return log_; }

  /// Takes what is there; closes the stream at its end. False when nothing was there.
  bool read_ready();
  /// Takes the remaining bytes without waiting for writers that still live, and closes.
  void close();

 private:
  void take(std::string_view bytes);
  void show_lines(std::string_view bytes);
  void show_rest();

  Descriptor source_;
  Show show_;
  std::string prefix_;
  Output& output_;
  Log log_;
  std::string partial_;  ///< of a line whose end has not come
  Tail tail_;
};

}  // namespace lockstep::launch
