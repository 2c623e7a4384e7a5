#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace lockstep::testing {

/// Expects the same bits of each tensor.
inline void expect_equal_tensors(const std::vector<at::Tensor>& got,
                                 const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(expected[i])) << "tensor " << i;
  }
}

}  // namespace lockstep::testing
