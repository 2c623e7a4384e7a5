#pragma once

#include <sys/types.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/logs.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// Strings in the form that execv() and execve() take.
class Words {
 public:
  void add(std::string word) { words_.push_back(std::move(word)); }
  char* const* get() {
    pointers_.clear();
    for (auto& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
    return pointers_.data();
  }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

/// A rank's line as it is shown beside those of other ranks. Tabs and colours (SGR sequences) stay,
/// all other control characters and escape sequences are left out: they would move the cursor,
/// clear the screen, or set the terminal's title. A colour that the line leaves on is reset.
/// Source: ECMA-48, and xterm's control sequences.
std::string plain_line(std::string_view line);

/// The last lines that were shown in one place. Outputs that go to the same place share it.
struct Place {
  bool line_open = false;        ///< the last line is unfinished
  const void* source = nullptr;  ///< the stream that it came from; null for the launcher's lines
  std::size_t lines = 0;         ///< of that source since another was shown, finished ones
};

/// One of the launcher's own outputs. Bytes are queued and written as the reader takes them. No
/// call blocks for longer than a hundredth of a second: a reader that takes nothing must not keep
/// the launcher from its ranks and its signals.
class Output {
 public:
  Output(int fd, std::shared_ptr<Place> place);

  int fd() const { return fd_; }
  /// Whether launcher and ranks may colour what they write here.
  bool colour() const { return colour_; }

  /// Bytes as they are.
  void pass(std::string_view bytes, const void* source);
  /// A line of its own, after any unfinished one.
  void line(std::string_view prefix, std::string_view text, const void* source = nullptr);
  /// How many lines the source has shown since another one was shown.
  std::size_t lines_shown_last(const void* source) const;

  bool waiting() const { return !queue_.empty(); }
  /// Too much is waiting: sources should be left alone until the reader has caught up.
  bool full() const { return queue_.size() >= most_waiting; }
  /// Whether the reader has gone: nothing more is kept.
  bool broken() const { return broken_; }
  /// The first error of writing, as errno, or 0: not everything has arrived.
  int error() const { return error_; }
  /// Bytes that were given up because the reader did not take them.
  std::size_t unread() const { return unread_; }
  /// Bytes that the reader has taken so far.
  std::size_t taken() const { return taken_; }
  bool same_place(const Output& other) const { return place_ == other.place_; }

  /// Writes what the reader takes without blocking.
  void write_ready() noexcept;
  /// Drops what is queued, and all that comes later.
  void give_up() noexcept;

 private:
  static constexpr std::size_t most_waiting = std::size_t{1} << 20;

  /// False when nothing more can be written now.
  bool write_some() noexcept;
  void note(const void* source, std::size_t lines);

  int fd_;
  std::shared_ptr<Place> place_;
  bool may_block_;
  bool colour_;
  std::string queue_;
  std::size_t written_ = 0;  ///< of the queue
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

 private:
  explicit Outputs(const std::shared_ptr<Place>& out_place);
};

/// The last lines that went by.
class Tail {
 public:
  void add(std::string_view bytes);
  bool empty() const { return bytes_.empty(); }
  bool contains(std::string_view text) const { return bytes_.find(text) != std::string::npos; }
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
  /// Whether the user sees the stream's last lines, so many, and nothing after them.
  bool shown_last(std::size_t lines) const {
    return show_ != Show::nothing && output_.lines_shown_last(this) >= lines;
  }

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
