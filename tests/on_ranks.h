#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/group.h"

/// A TEST() that on_ranks() runs for each of these numbers of ranks. The body is that of a rank,
/// whose group is `world`.
#define TEST_ON_RANKS(suite, name, ...)                                    \
  void suite##_##name(const Group& world);                                 \
  TEST(suite, name) {                                                      \
    for (const int ranks : {__VA_ARGS__}) on_ranks(ranks, suite##_##name); \
  }                                                                        \
  void suite##_##name([[maybe_unused]] const Group& world)

/// A suite of TEST_P() whose parameter is the number of ranks: each of these.
#define SUITE_ON_RANKS(suite, ...)                       \
  class suite : public ::testing::TestWithParam<int> {}; \
  INSTANTIATE_TEST_SUITE_P(Ranks, suite, ::testing::Values(__VA_ARGS__))

/// A test of such a suite, whose body is as that of TEST_ON_RANKS().
#define TEST_P_ON_RANKS(suite, name)                            \
  void suite##_##name(const Group& world);                      \
  TEST_P(suite, name) { on_ranks(GetParam(), suite##_##name); } \
  void suite##_##name([[maybe_unused]] const Group& world)

namespace lockstep::testing {

/// Bit for bit. Ranks: all.
inline bool same_on_all_ranks(const at::Tensor& values, const Group& group) {
  const auto own = values.detach().contiguous();
  const auto all = at::empty({group.size() * own.numel()}, own.options());
  group.all_gather(all, own).wait();
  const auto rows = all.view({group.size(), own.numel()});
  return rows.eq(rows[0]).all().item<bool>();
}

/// Expects the same bits of each tensor.
inline void expect_equal_tensors(const std::vector<at::Tensor>& got,
                                 const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(expected[i])) << "tensor " << i;
  }
}

}  // namespace lockstep::testing
