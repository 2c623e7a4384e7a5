#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::launch {

/// Whether the last thing shown in one place left a line unfinished. Shared by outputs that go to
/// the same place.
struct Place {
  bool line_open = false;
};

/// One of the launcher's own outputs. Bytes are queued and written as the reader takes them. No
/// call blocks for longer than a hundredth of a second: a reader that takes nothing must not keep
/// the launcher from its ranks and its signals.
class Output {
 public:
  Output(int fd, std::shared_ptr<Place> place);

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

  int fd_;
  std::shared_ptr<Place> place_;
  bool may_block_;
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

}  // namespace lockstep::launch
