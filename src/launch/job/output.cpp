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
#include <cstring>
#include <span>

#include "core/signal_safe_text.h"
#include "core/system/files.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {

using detail::concat;
using detail::plain_line;

std::string Losses::text() const {
  return detail::joined(places_, "; ", [](const auto& entry) {
    constexpr std::size_t most = 8;
    const auto& [reason, places] = entry;
    const auto shown = std::span(places).first(std::min(places.size(), most));
    return concat(detail::joined(shown, ", "),
                  places.size() > most ? concat(" and ", places.size() - most, " more") : "", ": ",
                  reason);
  });
}

namespace {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InvalidArgument(
        concat("cannot create the log directory '", folder.string(), "': ", error.message()));
  }
}

}  // namespace

void Log::write(std::string_view bytes) noexcept {
  if (!file_ || detail::write_all(file_.get(), bytes.data(), bytes.size())) return;
  if (error_ == 0) error_ = errno;
}

std::unique_ptr<detail::FolderLock> lock_logs(const std::filesystem::path& folder,
                                              std::string_view run_id) {
  if (folder.empty()) return nullptr;
  make_folder(folder);
  try {
    return std::make_unique<detail::FolderLock>(folder, "run", run_id);
  } catch (const Error& error) {
    throw InvalidArgument(concat("--log-dir ", error.what()));
  }
}

Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending) {
  if (folder.empty()) return {};
  make_folder(folder);
  const auto file = folder / concat("rank-", rank, '.', ending);
  // Without O_NONBLOCK, opening a FIFO would wait for its reader.
  constexpr int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor log(open(file.c_str(), flags, 0644));
  if (!log) {
    const auto why = detail::why_not_opened(file, errno);
    throw InvalidArgument(concat("cannot write the log file '", file.string(), "': ", why));
  }
  return {std::move(log), file};
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
