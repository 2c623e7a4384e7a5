#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

enum class ProgressStyle : std::uint8_t {
  silent,
  lines,  ///< one line at the end of a pass, for files and pipes
  bar     ///< a progress bar that is redrawn, for terminals
};

/// The style for a stream of this rank: silent if quiet and on all ranks except 0, bar if fd is a
/// terminal with a known width and a TERM other than "dumb", else lines.
ProgressStyle progress_style(const Group& group, int fd, bool quiet = false);

/// Shows the progress of a pass over the data on a stream.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// total is the sum of all counts of advance(); units names what is counted, such as "images".
  Progress(std::ostream& out, ProgressStyle style, std::string title, std::int64_t total,
           std::string units);
  /// Removes an unfinished bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Adds count to the progress. Cheap: draws at most ten times per second.
  void advance(std::int64_t count) { advance(count, {}); }
  /// The same with a short text to show, for example "loss 0.1234". note is called only when the
  /// bar is drawn.
  void advance(std::int64_t count, const std::function<std::string()>& note);
  /// Removes the bar and writes a line in its place, unless silent.
  void finish(std::string_view line);

 private:
  void draw(Clock::time_point now, const std::function<std::string()>& note);
  void erase();

  std::ostream& out_;
  ProgressStyle style_;
  std::string title_;
  std::int64_t total_;
  std::string units_;
  std::int64_t done_ = 0;
  Clock::time_point begin_;
  Clock::time_point next_draw_;
  bool drawn_ = false;  ///< the bar is on the screen
};

/// The text of a bar: title, bar, percentage, count or note, rate and remaining time.
/// Units: elapsed in seconds.
std::string progress_text(std::string_view title, std::int64_t done, std::int64_t total,
                          double elapsed, std::string_view units, std::string_view note = {});

/// Options of a RunLog.
struct RunLogOptions {
  std::string folder = {};  ///< created if it does not exist; empty: nothing is recorded
  bool trace = false;      ///< also write trace.json: computation, waits and exchanges of each rank
  bool overwrite = false;  ///< remove an earlier log in the folder instead of continuing it
  std::string strategy = {};  ///< name of the strategy in environment.json
  std::size_t spans = 65536;  ///< most trace spans per rank; older ones are dropped; 32 bytes each
};

/// Records a run in a folder: metrics.jsonl and a TensorBoard file, `intervals.jsonl`, trace.json,
/// environment.json. docs/run-log.md describes them; `lockstep report` creates a page from them.
/// Rank 0 writes the files. The thread that constructed a RunLog must also use and destroy it.
///
/// A folder that holds a log is continued. The first record gives the step at which it continues:
/// begin_interval(step), or scalars() for a program without intervals. Records of later steps,
/// which an earlier part of the run computed after its checkpoint, move to `discarded.jsonl`. A run
/// whose first record is begin_interval(0) keeps no record that has a step.
///
/// Only one job at a time may use a folder: while a RunLog exists, the constructor of another job's
/// throws.
///
/// If a later write fails, for example on a full disk, training continues: see lost().
class RunLog {
 public:
  /// Ranks: all, with the same options.
  /// Throws: Error, on every rank, if the folder cannot be written or another job uses it, which
  /// the message names. InvalidArgument for a trace without a folder.
  RunLog(const Group& world, RunLogOptions options);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  bool on() const { return state_ != nullptr; }

  /// Records values after `step` steps: a line of metrics.jsonl, and a point of a TensorBoard curve
  /// for each value. Does nothing on ranks other than 0.
  void scalars(std::int64_t step,
               std::initializer_list<std::pair<std::string_view, double>> values);
  void scalar(std::string_view name, std::int64_t step, double value) {
    scalars(step, {{name, value}});
  }

  /// Begins an interval of training steps after `step` steps, those before the checkpoint of a
  /// resumed run included. intervals.jsonl has a line for each interval, which divides each rank's
  /// time into computing, waiting and communication.
  void begin_interval(std::int64_t step);
  /// Ends the interval after `step` steps, and writes its line. samples: the number of samples that
  /// this rank trained on in the interval; 0 if unknown.
  /// Ranks: all.
  void end_interval(std::int64_t step, std::int64_t samples = 0);

  /// Writes trace.json with the spans of all ranks. Without this call there is no trace.
  /// Ranks: all.
  void close();

  /// Names the files that are incomplete, with the reasons; empty if all are complete. On rank 0.
  std::string lost() const;

 private:
  struct Counters;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
