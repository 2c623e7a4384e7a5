#include "lockstep/launch/output.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep::launch {
namespace {

bool same_place(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

void Output::pass(std::string_view bytes) {
  if (broken_ || bytes.empty()) return;
  queue_ += bytes;
  place_->line_open = bytes.back() != '\n';
}

void Output::line(std::string_view prefix, std::string_view text) {
  if (broken_) return;
  if (place_->line_open) queue_ += '\n';
  queue_ += prefix;
  queue_ += text;
  queue_ += '\n';
  place_->line_open = false;
}

bool Output::write_some(int wait_ms) noexcept {
  pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, wait_ms) <= 0) return false;
  // A pipe that is ready takes this much without blocking.
  const auto length = std::min<std::size_t>(queue_.size() - written_, PIPE_BUF);
  const auto count = write(fd_, queue_.data() + written_, length);
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) return wait_ms != 0;
    // A reader that has gone ends the job; a full disk only loses output.
    if (error_ == 0) error_ = errno;
    broken_ = errno == EPIPE || errno == EIO;
    queue_.clear();
    written_ = 0;
    return false;
  }
  written_ += static_cast<std::size_t>(count);
  if (written_ == queue_.size()) {
    queue_.clear();
    written_ = 0;
    return false;
  }
  return true;
}

void Output::write_ready() noexcept {
  while (waiting() && write_some(0)) {
  }
  if (written_ > most_waiting / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

void Output::write_all() noexcept {
  while (waiting() && write_some(-1)) {
  }
}

Outputs::Outputs() : Outputs(std::make_shared<Place>()) {}

Outputs::Outputs(const std::shared_ptr<Place>& out_place)
    : out(STDOUT_FILENO, out_place),
      err(STDERR_FILENO,
          same_place(STDOUT_FILENO, STDERR_FILENO) ? out_place : std::make_shared<Place>()) {}

}  // namespace lockstep::launch
