#include "launch/output.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

// Note [How a write is kept from blocking]
// A terminal that poll() calls writable takes fewer bytes than are written, and write() then waits
// for the reader. O_NONBLOCK belongs to the open file description, which the launcher shares with
// its shell and other programs; to open the terminal again may be forbidden. So a timer sends
// SIGALRM while a write lasts. SignalWatch has a handler for it without SA_RESTART: the write
// returns what it has written, or EINTR.

namespace lockstep::inline v0_2::launch {
namespace {

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

bool is_regular_file(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

void set_timer(suseconds_t microseconds) {
  const timeval time{.tv_sec = 0, .tv_usec = microseconds};
  const itimerval timer{.it_interval = time, .it_value = time};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

/// Interrupts each system call that lasts longer than a hundredth of a second, while this lives.
class Interruption {
 public:
  Interruption() { set_timer(10'000); }
  ~Interruption() { set_timer(0); }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
};

ssize_t write_for_a_moment(int fd, const char* data, std::size_t length) {
  const Interruption interruption;
  return write(fd, data, length);
}

}  // namespace

Output::Output(int fd, std::shared_ptr<Place> place)
    : fd_(fd), place_(std::move(place)), may_block_(!is_regular_file(fd)) {}

void Output::pass(std::string_view bytes) {
  if (broken_ || unread_ > 0 || bytes.empty()) return;
  queue_ += bytes;
  place_->line_open = bytes.back() != '\n';
}

void Output::line(std::string_view prefix, std::string_view text) {
  if (broken_ || unread_ > 0) return;
  if (place_->line_open) queue_ += '\n';
  queue_ += prefix;
  queue_ += text;
  queue_ += '\n';
  place_->line_open = false;
}

bool Output::write_some() noexcept {
  pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) <= 0) return false;
  const auto* data = queue_.data() + written_;
  const auto length = std::min<std::size_t>(queue_.size() - written_, PIPE_BUF);
  const auto count = may_block_ ? write_for_a_moment(fd_, data, length) : write(fd_, data, length);
  const int error = count < 0 ? errno : 0;
  if (error == EINTR || error == EAGAIN) return false;
  if (error != 0) {
    // A reader that has gone ends the job; a full disk only loses output.
    if (error_ == 0) error_ = error;
    broken_ = error == EPIPE || error == EIO;
    queue_.clear();
    written_ = 0;
    return false;
  }
  written_ += static_cast<std::size_t>(count);
  taken_ += static_cast<std::size_t>(count);
  if (written_ == queue_.size()) {
    queue_.clear();
    written_ = 0;
    return false;
  }
  return static_cast<std::size_t>(count) == length;
}

void Output::write_ready() noexcept {
  while (waiting() && write_some()) {
  }
  if (written_ > most_waiting / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

void Output::give_up() noexcept {
  unread_ += queue_.size() - written_;
  queue_.clear();
  written_ = 0;
}

Outputs::Outputs() : Outputs(std::make_shared<Place>()) {}

Outputs::Outputs(const std::shared_ptr<Place>& out_place)
    : out(STDOUT_FILENO, out_place),
      err(STDERR_FILENO,
          same_file(STDOUT_FILENO, STDERR_FILENO) ? out_place : std::make_shared<Place>()) {}

}  // namespace lockstep::launch
