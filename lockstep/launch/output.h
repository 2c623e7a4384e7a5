#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// Whether the last thing shown in one place left a line unfinished. Shared by outputs that go to
/// the same place.
struct Place {
  bool line_open = false;
};

/// One of the launcher's own outputs. What is written is queued, and leaves as the reader takes it,
/// so that a slow reader never keeps the launcher from its ranks.
class Output {
 public:
  Output(int fd, std::shared_ptr<Place> place) : fd_(fd), place_(std::move(place)) {}

  int fd() const { return fd_; }

  /// Bytes as they are.
  void pass(std::string_view bytes);
  /// A line of its own, after any unfinished one.
  void line(std::string_view prefix, std::string_view text);

  bool waiting() const { return !queue_.empty(); }
  /// Too much is waiting: sources should be left alone until the reader has caught up.
  bool full() const { return queue_.size() >= most_waiting; }
  /// Whether the reader has gone: nothing more is kept.
  bool broken() const { return broken_; }
  /// The first error of writing, as errno, or 0: not everything has arrived.
  int error() const { return error_; }

  /// Writes what the reader takes without blocking.
  void write_ready() noexcept;
  /// Writes everything, however long it takes.
  void write_all() noexcept;

 private:
  static constexpr std::size_t most_waiting = std::size_t{1} << 20;

  /// False when nothing more can be written now.
  bool write_some(int wait_ms) noexcept;

  int fd_;
  std::shared_ptr<Place> place_;
  std::string queue_;
  std::size_t written_ = 0;
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

}  // namespace lockstep::launch
