#include "lockstep/denormals.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/system/denormals_guard.h"

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

void expect_flushed(bool flushed) {
  EXPECT_EQ(flushes_denormals(), flushed);
  EXPECT_EQ(half_of_least_normal<float>(), flushed ? 0 : 0x1p-127f);
  EXPECT_EQ(half_of_least_normal<double>(), flushed ? 0 : 0x1p-1023);
  EXPECT_EQ(product_of_denormal(), flushed ? 0 : 0x1p-89f);
}

TEST(Denormals, AreKeptOrFlushedInResultsAndOperands) {
  if (!detail::can_flush_denormals) GTEST_SKIP() << "this processor is not known to flush";
  const detail::DenormalsGuard kept(false);
  expect_flushed(false);
  {
    const detail::DenormalsGuard flushed(true);
    expect_flushed(true);
    flush_denormals(false);
    expect_flushed(false);
    flush_denormals(true);
    {
      const detail::DenormalsGuard inner(false);
      expect_flushed(false);
    }
    expect_flushed(true);
  }
  expect_flushed(false);
}

}  // namespace
}  // namespace lockstep
