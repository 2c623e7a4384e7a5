#include <gtest/gtest.h>

#include "lockstep/data_parallel_options.h"
#include "parallel/shared_memory.h"
#include "tests/variable.h"

namespace lockstep::testing {
namespace {

TEST(OptionDefaults, AreThoseOfTheVariables) {
  EXPECT_EQ(DataParallelOptions{}.buckets.rest, std::size_t{25} << 20);
  EXPECT_FALSE(detail::shares_memory({}));
  const Variable share("LOCKSTEP_SHARE_MEMORY", "1");
  EXPECT_TRUE(detail::shares_memory({}));
  EXPECT_FALSE(detail::shares_memory({.share_memory = false}));
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
