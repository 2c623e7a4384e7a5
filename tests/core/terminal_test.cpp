#include "core/system/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/variable.h"

namespace lockstep::detail {
namespace {

using testing::Variable;

struct Ends {
  int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  int file = ::open("/dev/null", O_WRONLY);
  ~Ends() {
    ::close(terminal);
    ::close(file);
  }
};

TEST(Terminal, ShowsColourWhereTheUserWantsIt) {
  const Ends ends;
  ASSERT_GE(ends.terminal, 0);
  const struct {
    const char* term;
    const char* no_color;
    bool capable;
    bool colour;
  } cases[] = {{"xterm", nullptr, true, true},   {"xterm", "", true, true},
               {"xterm", "1", true, false},      {"dumb", nullptr, false, false},
               {nullptr, nullptr, false, false}, {"", nullptr, false, false}};
  for (const auto& one : cases) {
    const Variable term("TERM", one.term);
    const Variable no_color("NO_COLOR", one.no_color);
    SCOPED_TRACE(std::string(one.term != nullptr ? one.term : "no TERM") + ", NO_COLOR " +
                 (one.no_color != nullptr ? one.no_color : "unset"));
    EXPECT_EQ(is_capable_terminal(ends.terminal), one.capable);
    EXPECT_EQ(shows_colour(ends.terminal), one.colour);
    EXPECT_FALSE(is_capable_terminal(ends.file));
    EXPECT_FALSE(shows_colour(ends.file));
  }
}

TEST(Terminal, HasAWidthIfItsOwnerSetOne) {
  const Ends ends;
  ASSERT_GE(ends.terminal, 0);
  const Variable term("TERM", "xterm");
  EXPECT_EQ(terminal_width(ends.terminal), 0);
  const winsize size{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(ends.terminal, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(terminal_width(ends.terminal), 60);
  EXPECT_EQ(terminal_width(ends.file), 0);
}

}  // namespace
}  // namespace lockstep::detail
