#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "launch/job/output.h"
#include "tests/launch/launched.h"

namespace lockstep::inline v0_2::launch {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

TEST(PlainLine, KeepsTextTabsAndColours) {
  for (const auto& line :
       {""s, "loss 0.5\tstep 3"s, "größe 漢字 😀"s, "\x1b[31mred\x1b[0m"s,
        "\x1b[1;38;5;200mbold\x1b[m plain"s, "\x1b[38:2::1:2:3mtrue colour\x1b[0m"s}) {
    EXPECT_EQ(plain_line(line), line);
  }
}

TEST(PlainLine, ResetsAColourThatIsLeftOn) {
  EXPECT_EQ(plain_line("\x1b[31mred"), "\x1b[31mred\x1b[0m");
  EXPECT_EQ(plain_line("\x1b[31mred\x1b[0m \x1b[1mbold"), "\x1b[31mred\x1b[0m \x1b[1mbold\x1b[0m");
}

TEST(PlainLine, LeavesOutSequences) {
  for (const auto& sequence : {"\x1b[2J"s,             // clears the screen
                               "\x1b[10;20H"s,         // moves the cursor
                               "\x1b[?25l"s,           // hides it
                               "\x1b[?1049h"s,         // another screen
                               "\x1b[>4;2m"s,          // ends as a colour does
                               "\x1b[ q"s,             // with an intermediate character
                               "\x1b]0;title\a"s,      // sets the title
                               "\x1b]0;title\x1b\\"s,  // the same, ended otherwise
                               "\x1b]8;;http://x\a"s,  // a link
                               "\x1bPq#0;1;1\x1b\\"s,  // an image
                               "\x1b_G\x1b\\"s,
                               "\x1b^x\x1b\\"s,  // other strings
                               "\x1b"
                               "c"s,       // resets the terminal
                               "\x1b(0"s,  // another character set
                               "\x1b#8"s,
                               "\x1b="s,
                               "\x1bM"s,
                               "\xc2\x9b"
                               "2J"s,  // the same as ESC [ in UTF-8
                               "\x9b"
                               "2J"s,  // and as one byte
                               "\xc2\x9d"
                               "0;title\xc2\x9c"s,
                               "\a"s,
                               "\b"s,
                               "\v"s,
                               "\f"s,
                               "\x7f"s,
                               "\0"s,
                               "\r"s,
                               "\x0e"s}) {
    EXPECT_EQ(plain_line("a" + sequence + "b"), "ab") << ::testing::PrintToString(sequence);
  }
}

TEST(PlainLine, EndsACutSequenceWithTheLine) {
  for (const auto& cut : {"\x1b"s, "\x1b["s, "\x1b[31"s, "\x1b]0;title"s, "\x1b("s, "\xc2\x9b"s}) {
    EXPECT_EQ(plain_line("a" + cut), "a") << ::testing::PrintToString(cut);
  }
}

TEST(PlainLine, KeepsBytesThatAreNoText) {
  EXPECT_EQ(plain_line("\xff\xfe\xc3 x"), "\xff\xfe\xc3 x");
}

TEST(Output, OfPrefixedLinesMovesNoCursor) {
  const std::string script =
      "[ $LOCKSTEP_RANK = 0 ] && exit; printf 'a\\033[2Jb\\033[31mred\\033[0m\\n'; "
      "printf '\\033]0;owned\\007last words\\033[H\\n' >&2; exit 3";
  const auto ended = testing::run_lockstep({"-n", "2", "sh", "-c", script});
  EXPECT_EQ(ended.out, "[1] ab\x1b[31mred\x1b[0m\n");
  EXPECT_THAT(ended.err, HasSubstr("[1] last words\n"));
  const auto quiet = testing::run_lockstep({"-n", "2", "--quiet", "sh", "-c", script});
  EXPECT_THAT(quiet.err, HasSubstr("  | last words\n"));
}

TEST(Output, OfRankZeroAndLogFilesKeepControlSequences) {
  const auto ended = testing::run_lockstep({"-n", "1", "printf", "a\\033[2Jb\\n"});
  EXPECT_EQ(ended.out, "a\x1b[2Jb\n");
}

}  // namespace
}  // namespace lockstep::launch
