#include "launch/stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launch/plain_line.h"

namespace lockstep::inline v0_2::launch {
namespace {

/// A line longer than this is shown in pieces.
constexpr std::size_t longest_line = std::size_t{64} << 10;

/// The part of a line that a terminal would still show after redraws by carriage returns.
std::string_view last_drawn(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line.substr(line.rfind('\r') + 1);
}

}  // namespace

void Tail::add(std::string_view bytes) {
  constexpr std::size_t kept = std::size_t{16} << 10;
  if (bytes.size() > kept) bytes.remove_prefix(bytes.size() - kept);
  bytes_ += bytes;
  if (bytes_.size() > 2 * kept) bytes_.erase(0, bytes_.size() - kept);
}

std::vector<std::string> Tail::lines(std::size_t count) const {
  std::vector<std::string> lines;
  std::string_view rest(bytes_);
  while (!rest.empty() && (rest.back() == '\n' || rest.back() == '\r')) rest.remove_suffix(1);
  while (!rest.empty() && lines.size() < count) {
    const auto end = rest.rfind('\n');
    lines.emplace_back(end == std::string_view::npos ? rest : rest.substr(end + 1));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

Stream::Stream(Descriptor source, Show show, std::string prefix, Output& output, Log log)
    : source_(std::move(source)),
      show_(show),
      prefix_(std::move(prefix)),
      output_(output),
      log_(std::move(log)) {
  fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL) | O_NONBLOCK);
}

bool Stream::read_ready() {
  static std::array<char, 1 << 16> buffer;  // the stack may be smaller
  const auto count = read(fd(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) {  // a terminal's master says EIO when the last writer has gone
    show_rest();
    source_.reset();
    return false;
  }
  take({buffer.data(), static_cast<std::size_t>(count)});
  return true;
}

void Stream::close() {
  while (open() && read_ready()) {
  }
  show_rest();
  source_.reset();
}

void Stream::take(std::string_view bytes) {
  log_.write(bytes);
  tail_.add(bytes);
  if (show_ == Show::nothing) return;
  if (show_ == Show::bytes) {
    output_.pass(bytes);
  } else {
    show_lines(bytes);
  }
}

void Stream::show_lines(std::string_view bytes) {
  partial_ += bytes;
  std::string_view rest(partial_);
  if (show_ == Show::lines) {
    const auto end = rest.size() > longest_line ? rest.size() : rest.rfind('\n') + 1;
    output_.pass(rest.substr(0, end));
    rest.remove_prefix(end);
  } else {
    for (auto end = rest.find('\n'); end != std::string_view::npos || rest.size() > longest_line;
         end = rest.find('\n')) {
      const bool piece = end == std::string_view::npos;
      output_.line(prefix_, plain_line(last_drawn(rest.substr(0, piece ? longest_line : end))));
      rest.remove_prefix(piece ? longest_line : end + 1);
    }
  }
  partial_ = std::string(rest);
}

void Stream::show_rest() {
  if (partial_.empty()) return;
  if (show_ == Show::lines) {
    output_.pass(partial_);
  } else {
    output_.line(prefix_, plain_line(last_drawn(partial_)));
  }
  partial_.clear();
}

}  // namespace lockstep::launch
