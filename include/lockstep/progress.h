#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

enum class ProgressStyle : std::uint8_t {
  silent,
  lines,  ///< a line when a pass ends, for files and pipes
  bar     ///< one line, drawn over and over, for terminals
};

/// The style for this rank's stream: silence on all ranks but 0 and where quiet, a bar if fd is a
/// terminal that has a width, else lines.
ProgressStyle progress_style(const Group& group, int fd, bool quiet = false);

/// Shows how far a pass over the data is, on the stream it is given.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// total is what advance() adds up to; units names what is counted, as "images".
  Progress(std::ostream& out, ProgressStyle style, std::string title, std::int64_t total,
           std::string units);
  /// Removes an unfinished bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// So much more is done. Cheap: draws at most ten times a second.
  void advance(std::int64_t count);
  /// Removes the bar and writes a line in its place, unless silent.
  void finish(std::string_view line);

 private:
  void draw(Clock::time_point now);
  void erase();

  std::ostream& out_;
  ProgressStyle style_;
  std::string title_;
  std::int64_t total_;
  std::string units_;
  std::int64_t done_ = 0;
  Clock::time_point begin_;
  Clock::time_point next_draw_;
  std::size_t drawn_ = 0;  ///< width of the bar on the screen
};

/// How a bar looks: title, bar, share, count, rate and time left. elapsed in seconds.
std::string progress_text(std::string_view title, std::int64_t done, std::int64_t total,
                          double elapsed, std::string_view units);

}  // namespace lockstep
