#include "bench/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;

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
