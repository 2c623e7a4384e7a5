#include <gtest/gtest.h>
#include <hwy/targets.h>

#define SupportedTargets supported_by_module
#define GetChosenTarget chosen_by_module
#include "python/backend/highway_targets.cpp"
#undef SupportedTargets
#undef GetChosenTarget

TEST(HighwayTargets, PythonsModuleFindsWhatTheLibraryFinds) {
  // Newer versions have further targets, which the module does not choose.
  constexpr std::int64_t dispatched =
      HWY_TARGETS & (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL);
  EXPECT_EQ(hwy::supported_by_module() & dispatched, hwy::SupportedTargets() & dispatched);
  EXPECT_NE(hwy::supported_by_module() & HWY_STATIC_TARGET, 0);
}
