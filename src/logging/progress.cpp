#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include "core/text.h"
#include "lockstep/run_log.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr int bar_width = 16;

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 359999.0)));
  const auto two = [](std::int64_t value) { return detail::concat(value < 10 ? "0" : "", value); };
  if (whole < 3600) return detail::concat(whole / 60, ':', two(whole % 60));
  return detail::concat(whole / 3600, ':', two(whole / 60 % 60), ':', two(whole % 60));
}

/// Whether fd is a terminal with a width. Open MPI's mpirun gives ranks a pseudo-terminal without a
/// width even if its own output is a file.
bool is_terminal(int fd) {
  winsize size{};
  return isatty(fd) != 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
}

}  // namespace

ProgressStyle progress_style(const Group& group, int fd, bool quiet) {
  if (quiet || group.rank() != 0) return ProgressStyle::silent;
  return is_terminal(fd) ? ProgressStyle::bar : ProgressStyle::lines;
}

std::string progress_text(std::string_view title, std::int64_t done, std::int64_t total,
                          double elapsed, std::string_view units) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 1.0;
  const auto filled = static_cast<std::size_t>(share * bar_width);
  const auto percent = static_cast<int>(share * 100);
  std::string text = detail::concat(title, " [", std::string(filled, '#'),
                                    std::string(bar_width - filled, '.'), ']',
                                    percent < 10    ? "   "
                                    : percent < 100 ? "  "
                                                    : " ",
                                    percent, "%  ", done, '/', total);
  if (done > 0 && elapsed > 0) {
    const double rate = static_cast<double>(done) / elapsed;
    const double left = static_cast<double>(std::max<std::int64_t>(total - done, 0)) / rate;
    text +=
        detail::concat("  ", std::llround(rate), ' ', units, "/s  ", duration_text(left), " left");
  }
  return text;
}

Progress::Progress(std::ostream& out, ProgressStyle style, std::string title, std::int64_t total,
                   std::string units)
    : out_(out),
      style_(style),
      title_(std::move(title)),
      total_(total),
      units_(std::move(units)),
      begin_(Clock::now()),
      next_draw_(begin_) {}

Progress::~Progress() { erase(); }

void Progress::advance(std::int64_t count) {
  done_ += count;
  if (style_ != ProgressStyle::bar) return;
  if (const auto now = Clock::now(); now >= next_draw_) draw(now);
}

void Progress::draw(Clock::time_point now) {
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const std::string text = progress_text(title_, done_, total_, elapsed, units_);
  const std::size_t before = std::exchange(drawn_, text.size());
  out_ << '\r' << text << std::string(before > drawn_ ? before - drawn_ : 0, ' ') << std::flush;
  next_draw_ = now + std::chrono::milliseconds(100);
}

void Progress::erase() {
  if (drawn_ > 0) out_ << '\r' << std::string(std::exchange(drawn_, 0), ' ') << '\r' << std::flush;
}

void Progress::finish(std::string_view line) {
  if (style_ == ProgressStyle::silent) return;
  erase();
  out_ << line << std::endl;
  style_ = ProgressStyle::silent;
}

}  // namespace lockstep
