#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include "core/system/terminal.h"
#include "core/text.h"
#include "lockstep/run_log.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr int bar_width = 16;

/// A bar that is wider than the terminal is cut at its edge: the next one is drawn over it.
/// Source: VT100 user guide, DECAWM; ECMA-48, EL
constexpr std::string_view without_wrapping = "\x1b[?7l";
constexpr std::string_view with_wrapping = "\x1b[?7h";
constexpr std::string_view erase_to_end = "\x1b[K";

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 359999.0)));
  const auto two = [](std::int64_t value) { return detail::concat(value < 10 ? "0" : "", value); };
  if (whole < 3600) return detail::concat(whole / 60, ':', two(whole % 60));
  return detail::concat(whole / 3600, ':', two(whole / 60 % 60), ':', two(whole % 60));
}

}  // namespace

ProgressStyle progress_style(const Group& group, int fd, bool quiet) {
  if (quiet || group.rank() != 0) return ProgressStyle::silent;
  // Open MPI's mpirun gives ranks a pseudo-terminal without a width even if its own output is a
  // file.
  return detail::terminal_width(fd) > 0 ? ProgressStyle::bar : ProgressStyle::lines;
}

std::string progress_text(std::string_view title, std::int64_t done, std::int64_t total,
                          double elapsed, std::string_view units, std::string_view note) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 1.0;
  const auto filled = static_cast<std::size_t>(share * bar_width);
  const auto percent = static_cast<int>(share * 100);
  std::string text = detail::concat(
      title, " [", std::string(filled, '#'), std::string(bar_width - filled, '.'), ']',
      percent < 10    ? "   "
      : percent < 100 ? "  "
                      : " ",
      percent, "%  ", note.empty() ? detail::concat(done, '/', total) : std::string(note));
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

void Progress::advance(std::int64_t count, const std::function<std::string()>& note) {
  done_ += count;
  if (style_ != ProgressStyle::bar) return;
  if (const auto now = Clock::now(); now >= next_draw_) draw(now, note);
}

void Progress::draw(Clock::time_point now, const std::function<std::string()>& note) {
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const auto text = progress_text(title_, done_, total_, elapsed, units_, note ? note() : "");
  drawn_ = true;
  out_ << without_wrapping << '\r' << text << erase_to_end << with_wrapping << std::flush;
  next_draw_ = now + std::chrono::milliseconds(100);
}

void Progress::erase() {
  if (std::exchange(drawn_, false)) out_ << '\r' << erase_to_end << std::flush;
}

void Progress::finish(std::string_view line) {
  if (style_ == ProgressStyle::silent) return;
  erase();
  out_ << line << std::endl;
  style_ = ProgressStyle::silent;
}

}  // namespace lockstep
