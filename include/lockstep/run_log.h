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
  lines,  ///< a line when a pass ends, for files and pipes
  bar     ///< one line, drawn over and over, for terminals
};

/// The style for this rank's stream. Silence on all ranks but 0 and where quiet; a bar if fd is a
/// terminal with a width and a TERM other than "dumb"; else lines.
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
  void advance(std::int64_t count) { advance(count, {}); }
  /// The same with a short text to show, such as "loss 0.1234". note is called when the bar is
  /// drawn, and not otherwise.
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

/// How a bar looks: title, bar, share, count or note, rate and time left. elapsed in seconds.
std::string progress_text(std::string_view title, std::int64_t done, std::int64_t total,
                          double elapsed, std::string_view units, std::string_view note = {});

/// Options of a RunLog.
struct RunLogOptions {
  std::string folder = {};    ///< made if it is not there; none: nothing is recorded
  bool trace = false;         ///< trace.json: what each rank computed, waited for and exchanged
  bool overwrite = false;     ///< removes an earlier log in the folder, which else is continued
  std::string strategy = {};  ///< as environment.json is to name it
  std::size_t spans = 65536;  ///< most that a rank keeps of a trace, the newest; 32 bytes each
};

/// Records a run in a folder: metrics.jsonl and a TensorBoard file, `intervals.jsonl`, trace.json,
/// environment.json. docs/run-log.md describes them; `lockstep report` makes a page of them. Rank 0
/// writes; a rank's log is used and destroyed by the thread that made it.
///
/// A folder that holds a log is continued. The first record says where: begin_interval(step), or
/// scalars() for a program without intervals. Records of later steps, which an earlier part of the
/// run computed after its checkpoint, move to `discarded.jsonl`. A run that begins at step 0 keeps
/// none of the earlier records. `overwrite` removes an earlier log when this one is opened.
///
/// One log at a time may use a folder: as long as this lives, another job's is refused.
///
/// A later write that fails, as on a full disk, ends no training: see lost().
class RunLog {
 public:
  /// Ranks: all, with the same options.
  /// Throws: Error on every rank if the folder cannot be written, or naming the job that writes to
  /// it; InvalidArgument for a trace without a folder.
  RunLog(const Group& world, RunLogOptions options);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  bool on() const { return state_ != nullptr; }

  /// Records values of one moment: a line of metrics.jsonl, a point in each one's TensorBoard
  /// curve. step says how many steps have been taken. On other ranks than 0 it does nothing.
  void scalars(std::int64_t step,
               std::initializer_list<std::pair<std::string_view, double>> values);
  void scalar(std::string_view name, std::int64_t step, double value) {
    scalars(step, {{name, value}});
  }

  /// Delimit an interval of training steps. A line of `intervals.jsonl` divides each rank's time in
  /// it into computing, waiting and communication. step: the number of steps taken by then, before
  /// the checkpoint of a resumed run too. samples: those of this rank in the interval.
  void begin_interval(std::int64_t step);
  /// Ranks: all.
  void end_interval(std::int64_t step, std::int64_t samples = 0);

  /// Writes trace.json, of all ranks' spans.
  /// Ranks: all. Without it there is no trace.
  void close();

  /// Which files are not complete and why, on rank 0; empty if all are.
  std::string lost() const;

 private:
  struct Counters;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
