#include <ATen/ops/linalg_qr.h>
#include <gtest/gtest.h>

#include "lockstep/strategies.h"
#include "tests/sync/reference.h"

namespace lockstep::testing {
namespace {

/// A matrix that is compressed at rank 2, one in four dimensions, one that is too small, a vector;
/// gaps between them.
Bucket four_parameters(const Group& group, at::ScalarType dtype) {
  const auto zeros = [&](at::IntArrayRef sizes) { return at::zeros(sizes, dtype); };
  return {3,
          600,
          dtype,
          {{.name = "matrix", .parameter = zeros({16, 12}), .offset = 0},
           {.name = "kernel", .parameter = zeros({6, 3, 3, 3}), .offset = 200},
           {.name = "small", .parameter = zeros({3, 3}), .offset = 400},
           {.name = "vector", .parameter = zeros({100}), .offset = 480}},
          group};
}

at::Tensor slice_of(int rank, int step, const Bucket::Slice& slice) {
  const auto n = static_cast<std::size_t>(slice.values.numel());
  const auto values = gradient<double>(Kind::normal, n, rank, step + 100 * static_cast<int>(n));
  return at::tensor(values, at::kDouble).view(slice.values.sizes());
}

/// The definition for one matrix, over all ranks' matrices and residuals.
at::Tensor low_rank_mean(std::vector<at::Tensor>& sums, at::Tensor& q, bool feedback) {
  const auto orthogonal = [](const at::Tensor& m) { return std::get<0>(at::linalg_qr(m)); };
  q = orthogonal(q);
  auto p = at::zeros({sums[0].size(0), q.size(1)}, at::kDouble);
  for (const auto& m : sums) p += m.mm(q) / static_cast<double>(sums.size());
  p = orthogonal(p);
  auto next = at::zeros_like(q);
  for (const auto& m : sums) next += m.t().mm(p) / static_cast<double>(sums.size());
  q = next;
  const auto result = p.mm(q.t());
  for (auto& m : sums) m = feedback ? m - result : at::zeros_like(m);
  return result;
}

void check(int ranks, at::ScalarType dtype, bool feedback) {
  constexpr int steps = 4;
  spawn(ranks, [&](const Group& group) {
    auto bucket = four_parameters(group, dtype);
    const auto exchange = PowerSgd{.rank = 2, .error_feedback = feedback}.exchange(bucket);
    const auto slices = bucket.slices();
    std::vector<std::vector<at::Tensor>> residuals(2);
    std::vector<at::Tensor> factors;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto rows = slices[i].values.size(0);
      for (int rank = 0; rank < ranks; ++rank) {
        residuals[i].push_back(at::zeros({rows, slices[i].values.numel() / rows}, at::kDouble));
      }
      factors.push_back(exchange->state().at(slices[i].name + ".q").clone().to(at::kDouble));
    }
    for (int step = 0; step < steps; ++step) {
      for (const auto& slice : slices) slice.values.copy_(slice_of(group.rank(), step, slice));
      advance(*exchange, step, bucket, group);
      for (std::size_t i = 0; i < slices.size(); ++i) {
        at::Tensor expected = at::zeros(slices[i].values.sizes(), at::kDouble);
        if (i < 2) {
          for (int rank = 0; rank < ranks; ++rank) {
            auto& residual = residuals[i][static_cast<std::size_t>(rank)];
            residual = residual + slice_of(rank, step, slices[i]).reshape(residual.sizes());
          }
          expected = low_rank_mean(residuals[i], factors[i], feedback).view(expected.sizes());
        } else {
          for (int rank = 0; rank < ranks; ++rank) {
            expected += slice_of(rank, step, slices[i]) / static_cast<double>(ranks);
          }
        }
        const auto got = slices[i].values.to(at::kDouble);
        const double tolerance = dtype == at::kDouble ? 1e-11 : 1e-4;
        EXPECT_LE((got - expected).norm().item<double>(),
                  tolerance * expected.norm().item<double>())
            << slices[i].name << ", step " << step << ", rank " << group.rank() << " of " << ranks;
      }
    }
  });
}

TEST(PowerSgd, AveragesInTwoThinFactors) {
  for (const int ranks : rank_counts) check(ranks, at::kDouble, true);
  check(2, at::kDouble, false);
  check(3, at::kFloat, true);
}

TEST(PowerSgd, TakesZerosAndHugeNumbers) {
  spawn(2, [](const Group& group) {
    auto bucket = four_parameters(group, at::kFloat);
    const auto exchange = PowerSgd{.rank = 2}.exchange(bucket);
    for (int step = 0; step < 3; ++step) {
      bucket.values().zero_();
      if (step == 1) bucket.values()[5] = 1e18;
      advance(*exchange, step, bucket, group);
      EXPECT_TRUE(bucket.values().isfinite().all().item<bool>()) << step;
    }
  });
}

TEST(PowerSgd, GoesOnAfterAGradientThatIsTooLargeForItsFactors) {
  spawn(2, [](const Group& group) {
    for (const bool feedback : {false, true}) {
      auto bucket = four_parameters(group, at::kFloat);
      const auto exchange = PowerSgd{.rank = 2, .error_feedback = feedback}.exchange(bucket);
      const auto& matrix = bucket.slices()[0].values;
      matrix.fill_(9e37);
      advance(*exchange, 0, bucket, group);
      EXPECT_FALSE(matrix.isfinite().all().item<bool>());
      for (int step = 1; step < 3; ++step) {
        bucket.values().zero_();
        matrix.fill_(1);
        advance(*exchange, step, bucket, group);
        EXPECT_TRUE(at::allclose(matrix, at::ones_like(matrix), 1e-4, 1e-4)) << step;
      }
    }
  });
}

TEST(PowerSgd, SendsLessThanTheBucket) {
  spawn(2, [](const Group& group) {
    auto bucket = four_parameters(group, at::kFloat);
    const auto exchange = PowerSgd{.rank = 2}.exchange(bucket);
    bucket.values().fill_(1);
    advance(*exchange, 0, bucket, group);
    // Factors of 16 x 12 and 6 x 27, 9 + 100 elements as they are, and a place for each rank.
    EXPECT_EQ(bytes_sent(group), 4U * (2 * (16 + 12) + 2 * (6 + 27) + 109 + 2));
  });
}

}  // namespace
}  // namespace lockstep::testing
