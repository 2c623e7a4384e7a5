#include "lockstep/denormals.h"

#include <limits>

#include "core/system/denormals_guard.h"
#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

/// Half of the least normal number, as the calling thread computes it.
template <class T>
T half_of_least_normal() {
  volatile T value = std::numeric_limits<T>::min();
  value = value / 2;
  return value;
}

/// A denormal times 2^60, which is normal.
float product_of_denormal() {
  volatile float value = std::numeric_limits<float>::denorm_min();
  value = value * 0x1p60f;
  return value;
}

class Denormals : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::can_flush_denormals) GTEST_SKIP() << "this processor is not known to flush";
  }
  detail::DenormalsGuard kept_{false};
};

TEST_F(Denormals, AreKeptOrFlushedInResultsAndOperands) {
  EXPECT_FALSE(flushes_denormals());
  EXPECT_EQ(half_of_least_normal<float>(), 0x1p-127f);
  EXPECT_EQ(half_of_least_normal<double>(), 0x1p-1023);
  EXPECT_EQ(product_of_denormal(), 0x1p-89f);

  flush_denormals(true);
  EXPECT_TRUE(flushes_denormals());
  EXPECT_EQ(half_of_least_normal<float>(), 0);
  EXPECT_EQ(half_of_least_normal<double>(), 0);
  EXPECT_EQ(product_of_denormal(), 0);

  flush_denormals(false);
  EXPECT_FALSE(flushes_denormals());
  EXPECT_EQ(product_of_denormal(), 0x1p-89f);
}

TEST_F(Denormals, GuardRestoresTheSetting) {
  {
    const detail::DenormalsGuard flushed(true);
    EXPECT_TRUE(flushes_denormals());
    {
      const detail::DenormalsGuard kept(false);
      EXPECT_FALSE(flushes_denormals());
    }
    EXPECT_TRUE(flushes_denormals());
  }
  EXPECT_FALSE(flushes_denormals());
}

TEST_F(Denormals, DifferenceBetweenRanksNamesBothAndTheRemedy) {
  detail::expect_same_denormals("init", 1, true, true);
  detail::expect_same_denormals("init", 1, false, false);
  EXPECT_THAT(
      testing::message_of<InvalidArgument>(
          [&] { detail::expect_same_denormals("init", 2, false, true); }),
      testing::HasSubstr("init: denormals are kept on rank 2, expected flushed as on rank 0; set "
                         "LOCKSTEP_FLUSH_DENORMALS"));
}

}  // namespace
}  // namespace lockstep
