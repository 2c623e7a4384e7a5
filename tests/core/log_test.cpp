#include "core/log.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

TEST(LogSink, HasTheMessagesOfItsLevelsInPlaceOfStderr) {
  std::vector<std::pair<LogLevel, std::string>> got;
  set_log_sink([&](LogLevel level, std::string_view text) { got.emplace_back(level, text); });
  ::testing::internal::CaptureStderr();
  log::debug("too low");
  log::warn("a warning");
  log::notice("what a user must know");
  log::write(LogLevel::error, "an error");
  set_log_sink({});
  log::notice("after it");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "lockstep: after it\n");
  EXPECT_THAT(got, ElementsAre(Pair(LogLevel::warn, "a warning"),
                               Pair(LogLevel::warn, "what a user must know"),
                               Pair(LogLevel::error, "an error")));
}

}  // namespace
}  // namespace lockstep::testing
