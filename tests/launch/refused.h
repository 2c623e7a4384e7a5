#pragma once

#include "tests/launch/launched.h"

namespace lockstep::testing {

/// A command line that must be refused, and words of the refusal.
struct Refused {
  std::string arguments;  ///< as words_of() takes them
  Words said;
  Launched::Variables variables = {};
};

/// That each of these, after the first words, is one error of usage and starts nothing.
inline void expect_refused(const Words& first, const std::vector<Refused>& commands) {
  for (const auto& command : commands) {
    SCOPED_TRACE(command.arguments);
    const auto ended =
        Launched(joined(first, {words_of(command.arguments)}), command.variables).wait();
    EXPECT_THAT(ended, ends(2, command.said, {"restart 1"}));
    EXPECT_EQ(ended.out, "");
    EXPECT_FALSE(anything_left());
  }
}

}  // namespace lockstep::testing
