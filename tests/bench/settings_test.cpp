#include "bench/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/error.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void expect_refused(const Settings& settings, const char* text) {
  try {
    check(settings);
    ADD_FAILURE() << "accepted, expected an error with " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Settings, DefaultsAreUsable) { EXPECT_NO_THROW(check(Settings{})); }

TEST(Settings, RefusesWhatCannotBeMeasured) {
  Settings settings;
  settings.ranks = 0;
  expect_refused(settings, "-n is 0");
  settings.ranks = 100000;
  expect_refused(settings, "-n is 100000");
  settings = {};
  settings.min_bytes = 0;
  expect_refused(settings, "--min is 0");
  settings = {};
  settings.min_bytes = settings.max_bytes + 1;
  expect_refused(settings, "more than --max");
  settings = {};
  settings.factor = 1;
  expect_refused(settings, "--factor is 1");
  settings = {};
  settings.max_bytes = std::size_t{1} << 50;
  expect_refused(settings, "memory available");
  settings.max_bytes = std::numeric_limits<std::size_t>::max();
  expect_refused(settings, "memory available");
}

TEST(Settings, SizesGrowByTheFactorUpToTheLargest) {
  Settings settings;
  settings.min_bytes = 1000;
  settings.max_bytes = 100000;
  settings.factor = 10;
  EXPECT_THAT(sizes(settings), ElementsAre(1000, 10000, 100000));
  settings.max_bytes = 99999;
  EXPECT_THAT(sizes(settings), ElementsAre(1000, 10000));
  settings.max_bytes = 1000;
  EXPECT_THAT(sizes(settings), ElementsAre(1000));
  settings.max_bytes = std::numeric_limits<std::size_t>::max();
  settings.factor = 1u << 31;
  EXPECT_EQ(sizes(settings).size(), 2u);
}

TEST(Settings, CountsElementsOfOnePart) {
  Settings settings;
  settings.ranks = 4;
  EXPECT_EQ(part_count(settings, 1024), 256u);
  settings.collective = Collective::all_gather;
  EXPECT_EQ(part_count(settings, 1024), 64u);
  settings.collective = Collective::reduce_scatter;
  settings.dtype = DType::f64;
  EXPECT_EQ(part_count(settings, 1024), 32u);
  EXPECT_EQ(part_count(settings, 1), 1u);
}

}  // namespace
}  // namespace lockstep::bench
