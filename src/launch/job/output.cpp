#include "launch/job/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <optional>

#include "core/system/files.h"
#include "core/system/terminal.h"

namespace lockstep::inline v0_2::launch {
namespace {

constexpr char escape = '\x1b';
constexpr std::string_view reset = "\x1b[0m";

bool between(char c, unsigned first, unsigned last) {
  const auto code = static_cast<unsigned char>(c);
  return code >= first && code <= last;
}

/// The length of the valid UTF-8 character at the beginning; 0 for none.
/// Units: bytes.
std::size_t utf8_length(std::string_view text) {
  const std::size_t length = between(text[0], 0xc2, 0xdf)   ? 2
                             : between(text[0], 0xe0, 0xef) ? 3
                             : between(text[0], 0xf0, 0xf4) ? 4
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  const auto rest = text.substr(1, length - 1);
  return std::ranges::all_of(rest, [](char c) { return between(c, 0x80, 0xbf); }) ? length : 0;
}

/// A C1 control character at the beginning of a text: ESC and a character, UTF-8, or one byte.
/// `letter` is the character after ESC in the first form.
struct Control {
  char letter;
  std::size_t length;
};
std::optional<Control> control_at(std::string_view text) {
  if (text[0] == escape && text.size() > 1) return Control{text[1], 2};
  const auto of = [](char c) { return static_cast<char>(static_cast<unsigned char>(c) - 0x40); };
  if (text[0] == '\xc2' && text.size() > 1 && between(text[1], 0x80, 0x9f)) {
    return Control{of(text[1]), 2};
  }
  if (between(text[0], 0x80, 0x9f)) return Control{of(text[0]), 1};
  return std::nullopt;
}

/// The length of the escape sequence that begins with this control character. An incomplete
/// sequence ends with the line.
/// Units: bytes.
std::size_t sequence_length(std::string_view text, const Control& control) {
  auto at = control.length;
  const auto skip = [&](unsigned first, unsigned last) {
    while (at < text.size() && between(text[at], first, last)) ++at;
  };
  if (control.letter == '[') {
    skip(0x30, 0x3f);
    skip(0x20, 0x2f);
  } else if (std::string_view("]PX^_").find(control.letter) != std::string_view::npos) {
    // A control string, which ends with BEL or ST.
    while (at < text.size() && text[at] != '\a') {
      const auto inner = control_at(text.substr(at));
      if (inner && inner->letter == '\\') return at + inner->length;
      ++at;
    }
  } else if (between(control.letter, 0x20, 0x2f)) {
    skip(0x20, 0x2f);
  } else {
    return at;
  }
  return std::min(at + 1, text.size());
}

bool is_colour(std::string_view sequence) {
  return sequence.starts_with("\x1b[") && sequence.ends_with('m') &&
         sequence.find_first_not_of("0123456789;:", 2) == sequence.size() - 1;
}

}  // namespace

std::string plain_line(std::string_view line) {
  const auto ordinary = [](char c) { return c == '\t' || between(c, 0x20, 0x7e); };
  if (std::ranges::all_of(line, ordinary)) return std::string(line);
  std::string shown;
  bool coloured = false;
  while (!line.empty()) {
    std::size_t length = 1;
    if (const auto control = control_at(line)) {
      length = sequence_length(line, *control);
      const auto sequence = line.substr(0, length);
      if (is_colour(sequence)) {
        shown += sequence;
        coloured = sequence != reset && sequence != "\x1b[m";
      }
    } else if (const auto whole = utf8_length(line); whole > 0) {
      length = whole;
      shown += line.substr(0, length);
    } else if (line[0] == '\t' || !(between(line[0], 0, 0x1f) || line[0] == '\x7f')) {
      shown += line[0];
    }
    line.remove_prefix(length);
  }
  if (coloured) shown += reset;
  return shown;
}

namespace {

/// Longer lines are displayed in pieces.
constexpr std::size_t longest_line = std::size_t{64} << 10;

/// The part of a line that is visible after a terminal has processed its carriage returns.
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
    const auto line = end == std::string_view::npos ? rest : rest.substr(end + 1);
    // A backtrace of LibTorch would push the error itself out of the report.
    const bool traced = line.starts_with("frame #") || line.starts_with("Exception raised from ");
    if (!traced) lines.emplace_back(line);
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
  if (count <= 0) {  // a pseudo-terminal returns EIO after its last writer has closed it
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
    output_.pass(bytes, this);
  } else {
    show_lines(bytes);
  }
}

void Stream::show_lines(std::string_view bytes) {
  partial_ += bytes;
  std::string_view rest(partial_);
  if (show_ == Show::lines) {
    auto end = rest.rfind('\n') + 1;
    if (end == 0 && rest.size() > longest_line) end = rest.size();
    output_.pass(rest.substr(0, end), this);
    rest.remove_prefix(end);
  } else {
    for (auto end = rest.find('\n'); end != std::string_view::npos || rest.size() > longest_line;
         end = rest.find('\n')) {
      const bool piece = end == std::string_view::npos;
      output_.line(prefix_, plain_line(last_drawn(rest.substr(0, piece ? longest_line : end))),
                   this);
      rest.remove_prefix(piece ? longest_line : end + 1);
    }
  }
  partial_ = std::string(rest);
}

void Stream::show_rest() {
  if (partial_.empty()) return;
  if (show_ == Show::lines) {
    output_.pass(partial_, this);
  } else {
    output_.line(prefix_, plain_line(last_drawn(partial_)), this);
  }
  partial_.clear();
}

// Note [How a write is kept from blocking]
// A terminal that poll() reports as writable may accept fewer bytes than are written, and write()
// then blocks until the reader reads. O_NONBLOCK belongs to the open file description, which the
// launcher shares with its shell and other programs, and the terminal may not be opened again.
// Therefore a timer sends SIGALRM during a write. SignalWatch handles it without SA_RESTART, so
// write() returns the number of bytes that it has written, or EINTR.

namespace {

bool is_regular_file(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

void set_timer(suseconds_t microseconds) {
  const timeval time{.tv_sec = 0, .tv_usec = microseconds};
  const itimerval timer{.it_interval = time, .it_value = time};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

}  // namespace

Output::Output(int fd, std::shared_ptr<Place> place)
    : fd_(fd),
      place_(std::move(place)),
      may_block_(!is_regular_file(fd)),
      colour_(detail::shows_colour(fd)) {}

void Output::note(const void* source, std::size_t lines) {
  if (place_->source != source) place_->lines = 0;
  place_->source = source;
  place_->lines += lines;
}

std::size_t Output::lines_shown_last(const void* source) const {
  if (broken_ || unread_ > 0 || place_->source != source) return 0;
  return place_->lines + (place_->line_open ? 1 : 0);
}

void Output::pass(std::string_view bytes, const void* source) {
  if (broken_ || unread_ > 0 || bytes.empty()) return;
  note(source, static_cast<std::size_t>(std::ranges::count(bytes, '\n')));
  queue_ += bytes;
  place_->line_open = bytes.back() != '\n';
}

void Output::line(std::string_view prefix, std::string_view text, const void* source) {
  if (broken_ || unread_ > 0) return;
  note(source, 1);
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
  if (may_block_) set_timer(10'000);
  const auto count = write(fd_, data, length);
  const int error = count < 0 ? errno : 0;
  if (may_block_) set_timer(0);
  if (error == EINTR || error == EAGAIN) return false;
  if (error != 0) {
    // A closed output ends the job; on a full disk, output is only lost.
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
  while (has_queued() && write_some()) {
  }
  if (written_ > most_queued / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

void Output::give_up() noexcept {
  unread_ += queue_.size() - written_;
  queue_.clear();
  written_ = 0;
}

Outputs::Outputs()
    : out(STDOUT_FILENO, std::make_shared<Place>()),
      err(STDERR_FILENO, detail::same_file(STDOUT_FILENO, STDERR_FILENO)
                             ? out.place()
                             : std::make_shared<Place>()) {}

}  // namespace lockstep::launch
