#include <gtest/gtest.h>
#include <stdlib.h>

#include "lockstep/data_parallel_options.h"

namespace lockstep::testing {
namespace {

/// A variable of this process in a scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(OptionDefaults, AreThoseOfTheVariables) {
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{25} << 20);
  EXPECT_FALSE(DataParallelOptions{}.share_memory);
  const Variable share("LOCKSTEP_SHARE_MEMORY", "1");
  EXPECT_TRUE(DataParallelOptions{}.share_memory);
  EXPECT_FALSE(DataParallelOptions{.share_memory = false}.share_memory);
  const Variable bucket("LOCKSTEP_BUCKET_MIB", "5");
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{5} << 20);
  EXPECT_EQ(DataParallelOptions{}.buckets.first, std::size_t{1} << 20);
  EXPECT_EQ((DataParallelOptions{.buckets = {.first = 3, .rest = 7}}.buckets.rest), 7u);
}

/// Options may be constructed before main(). init() reports the variable.
TEST(OptionDefaults, AreThoseOfTheLibraryForAVariableThatCannotBeUsed) {
  const Variable bucket("LOCKSTEP_BUCKET_MIB", "many");
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{25} << 20);
}

}  // namespace
}  // namespace lockstep::testing
