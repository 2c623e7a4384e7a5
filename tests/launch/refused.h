#pragma once

#include <ostream>

#include "tests/launch/launched.h"

namespace lockstep::testing {

/// A command line that must be refused, and words of the refusal.
struct Refused {
  std::string name;
  std::string arguments;  ///< as words_of() takes them
  Words said;
  Launched::Variables variables = {};
};

inline void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }
inline std::string name_of_refused(const ::testing::TestParamInfo<Refused>& test) {
  return test.param.name;
}

/// That the command is one error of usage, and starts nothing.
inline void expect_refused(const Words& command, const Refused& refused) {
  const auto ended = Launched(command, refused.variables).wait();
  EXPECT_THAT(ended, ends(2, refused.said));
  EXPECT_EQ(ended.out, "");
  EXPECT_FALSE(anything_left());
}

}  // namespace lockstep::testing
