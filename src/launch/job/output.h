#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/system/files.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The places of a job's output that could not be written, and the causes.
class Losses {
 public:
  /// Adds a place and why output for it was lost.
  void add(const std::string& place, const std::string& reason) {
    places_[reason].push_back(place);
  }

  bool empty() const { return places_.empty(); }
  /// "stdout, logs/rank-0.out: No space left on device; stderr: its reader did not take 80 bytes".
  std::string text() const;

 private:
  std::map<std::string, std::vector<std::string>> places_;  ///< by cause
};

/// The log file of one stream of a rank, or none. Output that cannot be written is lost, because a
/// full disk must not end the job. error() is the first error.
class Log {
 public:
  Log() = default;
  Log(Descriptor file, std::filesystem::path path)
      : file_(std::move(file)), path_(std::move(path)) {}

  void write(std::string_view bytes) noexcept;

  const std::filesystem::path& path() const { return path_; }
  int error() const { return error_; }

 private:
  Descriptor file_;
  std::filesystem::path path_;
  int error_ = 0;
};

/// Creates the folder and locks it against other jobs. Null if folder is empty.
/// Throws: InvalidArgument naming the folder, and the job that writes to it.
std::unique_ptr<detail::FolderLock> lock_logs(const std::filesystem::path& folder,
                                              std::string_view run_id);

/// Creates the folder, and creates or truncates "rank-<rank>.<ending>" in it. No file if folder is
/// empty. Does not follow a symbolic link, which another user could point to any file.
/// Throws: InvalidArgument naming the file and why it cannot be written.
Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending);

/// State of a file or terminal, shared by outputs that write to it.
struct Place {
  bool line_open = false;        ///< the last output did not end its line
  const void* source = nullptr;  ///< the stream of the last output; null for the launcher's lines
  std::size_t lines = 0;         ///< finished lines of `source` since another source was shown
};

/// The launcher's stdout or stderr. Bytes are queued, and written when the reader reads. No call
/// blocks for longer than 10 ms, so that a reader that does not read cannot block the launcher.
class Output {
 public:
  Output(int fd, std::shared_ptr<Place> place);

  int fd() const { return fd_; }
  /// Whether launcher and ranks may colour what they write here.
  bool colour() const { return colour_; }

  /// Queues bytes unchanged.
  void pass(std::string_view bytes, const void* source);
  /// Queues a line, after ending an unfinished one.
  void line(std::string_view prefix, std::string_view text, const void* source = nullptr);
  /// How many lines the source has shown since another one was shown.
  std::size_t lines_shown_last(const void* source) const;

  bool has_queued() const { return !queue_.empty(); }
  /// Whether 1 MiB or more is queued: the caller should not read from ranks until the reader has
  /// caught up.
  bool full() const { return queue_.size() >= most_queued; }
  /// Whether the reader has closed the output. Further bytes are discarded.
  bool broken() const { return broken_; }
  /// The first error of writing (errno), after which output is incomplete; 0 for none.
  int error() const { return error_; }
  /// Number of bytes that were discarded because the reader did not read them.
  std::size_t unread() const { return unread_; }
  /// Number of bytes that were written so far.
  std::size_t taken() const { return taken_; }
  const std::shared_ptr<Place>& place() const { return place_; }

  /// Writes queued bytes as far as possible without blocking.
  void write_ready() noexcept;
  /// Discards queued bytes and all later ones.
  void give_up() noexcept;

 private:
  static constexpr std::size_t most_queued = std::size_t{1} << 20;

  /// Writes a part of the queue. False if nothing more can be written now.
  bool write_some() noexcept;
  void note(const void* source, std::size_t lines);

  int fd_;
  std::shared_ptr<Place> place_;
  bool may_block_;
  bool colour_;
  std::string queue_;
  std::size_t written_ = 0;  ///< bytes of the queue that are written
  std::size_t taken_ = 0;
  std::size_t unread_ = 0;
  bool broken_ = false;
  int error_ = 0;
};

/// The launcher's stdout and stderr.
struct Outputs {
  Outputs();

  Output out;
  Output err;
};

/// The last lines of a stream.
class Tail {
 public:
  void add(std::string_view bytes);
  bool empty() const { return bytes_.empty(); }
  bool contains(std::string_view text) const { return bytes_.find(text) != std::string::npos; }
  /// The last `count` lines at most, oldest first, without line ends and without LibTorch's
  /// backtraces. Long lines are truncated at their beginning.
  std::vector<std::string> lines(std::size_t count) const;

 private:
  std::string bytes_;
};

/// How a stream of a rank is displayed.
enum class Show {
  nothing,  ///< --quiet
  bytes,    ///< unchanged and at once, for terminals
  lines,    ///< unchanged, in whole lines, so that other ranks' lines come between lines
  prefixed  ///< line by line, with the prefix "[rank] " and through plain_line()
};

/// The write ends of a rank's stdout and stderr.
struct WriteEnds {
  Descriptor out;
  Descriptor err;
};

/// Copies one rank's stdout or stderr to the launcher's output, to a log file and to the last lines
/// for a report.
class Stream {
 public:
  Stream(Descriptor source, Show show, std::string prefix, Output& output, Log log);

  int fd() const { return source_.get(); }
  bool open() const { return static_cast<bool>(source_); }
  const Output& output() const { return output_; }
  const Tail& tail() const { return tail_; }
  const Log& log() const { return log_; }
  /// Whether the user sees the stream's last lines, so many, and nothing after them.
  bool shown_last(std::size_t lines) const {
    return show_ != Show::nothing && output_.lines_shown_last(this) >= lines;
  }

  /// Reads and copies available bytes; closes the stream at its end. False if there were none.
  bool read_ready();
  /// Copies the remaining available bytes and closes the stream, without waiting for processes that
  /// could still write.
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
  std::string partial_;  ///< beginning of a line whose end has not arrived
  Tail tail_;
};

}  // namespace lockstep::launch
