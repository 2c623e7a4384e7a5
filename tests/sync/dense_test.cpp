// Strategies that send every element: halves, 8-bit codes, joined changes.
#include <ATen/ops/linalg_qr.h>

#include <numeric>

#include "lockstep/types.h"
#include "tests/kernels/quantized.h"
#include "tests/sync/on_hosts.h"
#include "tests/sync/reference.h"

namespace lockstep::testing {
namespace {

Reference<float> rounded_mean(const Wire& wire) {
  return [wire](const Vectors<float>& gradients, int) {
    const std::vector<std::span<const float>> inputs(gradients.begin(), gradients.end());
    std::vector<float> mean(gradients[0].size());
    kernels::reference::reduce_rounded(wire, ReduceOp::avg, inputs, mean);
    return std::vector<double>(mean.begin(), mean.end());
  };
}

TEST(Halves, AverageWhatWasRounded) {
  for (const int ranks : rank_counts) {
    const auto check = [&](const Strategy& strategy, const Wire& wire) {
      compare<float>(
          ranks, strategy, all_cases(ranks), [&](std::size_t) { return rounded_mean(wire); }, 0);
    };
    check(Fp16{.clip = 100}, {.dtype = DType::f16, .clip = 100, .predivide = true});
    check(Fp16{.clip = 0.5, .predivide = false}, {.dtype = DType::f16, .clip = 0.5});
    check(Bf16{}, {.dtype = DType::bf16, .predivide = true});
  }
}

Reference<float> quantized_mean(int ranks, std::size_t n, bool feedback) {
  Vectors<float> residuals(static_cast<std::size_t>(ranks), std::vector<float>(n));
  return [=](const Vectors<float>& gradients, int) mutable {
    const auto mean = kernels::expected_mean(gradients, residuals, feedback);
    return std::vector<double>(mean.begin(), mean.end());
  };
}

TEST(Int8, AveragesWhatCodesSay) {
  for (const int ranks : rank_counts) {
    for (const bool feedback : {true, false}) {
      // A sum that rounds differently may move a value by one code of 127.
      compare<float>(
          ranks, Int8{.error_feedback = feedback}, all_cases(ranks),
          [&](std::size_t n) { return quantized_mean(ranks, n, feedback); }, 5e-3,
          kernels::quantized_chunk);
    }
  }
}

TEST(Int8, GivesTheSameBitsWhetherOrNotRanksShareMemory) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const bool feedback : {true, false}) {
      on_ranks(ranks, [&](const Group& shared) {
        const auto apart = on_hosts(shared, std::vector<int>(static_cast<std::size_t>(ranks)));
        constexpr std::size_t n = 5000;
        Bucket here(0, n, at::kFloat, {}, shared), there(0, n, at::kFloat, {}, apart);
        const Int8 strategy{.error_feedback = feedback};
        const auto in_place = strategy.exchange(here), by_codes = strategy.exchange(there);
        for (int step = 0; step < 3; ++step) {
          for (const auto* bucket : {&here, &there}) {
            std::ranges::copy(gradient<float>(Kind::normal, n, shared.rank(), step),
                              lockstep::detail::elements<float>(bucket->values()).begin());
          }
          advance(*in_place, step, here, shared);
          advance(*by_codes, step, there, apart);
          EXPECT_TRUE(here.values().equal(there.values())) << "step " << step;
        }
        if (feedback) {
          EXPECT_TRUE(in_place->state()
                          .at("bucket0.residual")
                          .equal(by_codes->state().at("bucket0.residual")));
        }
        // Both count the bytes that a network would carry.
        const auto words = 3U * 2 * 16;
        EXPECT_EQ(bytes_sent(shared) - words, 2 * bytes_sent(apart));
      });
    }
  }
}

/// Adasum of ranks [first, first + count), as the definition says it. On 2, 4 and 8 ranks, this is
/// Horovod's operator. Source: Maleki et al., arXiv 2006.02924.
template <class T>
std::vector<double> adasum(const Vectors<T>& changes, std::size_t first, std::size_t count) {
  if (count == 1) return {changes[first].begin(), changes[first].end()};
  const std::size_t left = (count + 1) / 2;
  const auto a = adasum(changes, first, left), b = adasum(changes, first + left, count - left);
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const double ab = dot(a, b), aa = dot(a, a), bb = dot(b, b);
  std::vector<double> joined;
  for (std::size_t i = 0; i < a.size(); ++i) {
    joined.push_back((aa > 0 ? 1 - ab / (2 * aa) : 1) * a[i] +
                     (bb > 0 ? 1 - ab / (2 * bb) : 1) * b[i]);
  }
  return joined;
}

/// The bucket holds parameters, which begin at zero; each step's "gradient" is what a rank's
/// optimizer made of them.
template <class T>
Reference<T> joined_changes(std::size_t n) {
  std::vector<double> agreed(n);
  return [=](const Vectors<T>& parameters, int) mutable {
    Vectors<T> changes = parameters;
    for (auto& change : changes)
      for (std::size_t i = 0; i < n; ++i) change[i] -= static_cast<T>(agreed[i]);
    const auto joined = adasum(changes, 0, changes.size());
    for (std::size_t i = 0; i < n; ++i) agreed[i] += joined[i];
    return agreed;
  };
}

template <class T>
Reference<T> joined_gradients(std::size_t) {
  return [](const Vectors<T>& gradients, int) { return adasum(gradients, 0, gradients.size()); };
}

template <class T>
void check_adasum(double tolerance) {
  for (const int ranks : {1, 2, 3, 4, 5, 7}) {
    std::vector<Case> cases;
    for (const auto c : all_cases(ranks)) {
      // Squares of a double's denormals vanish: that would test double, not the strategy.
      if (c.kind != Kind::denormal || sizeof(T) == 4) cases.push_back(c);
    }
    compare<T>(
        ranks, Adasum{}, cases, [](std::size_t n) { return joined_changes<T>(n); }, tolerance);
    compare<T>(ranks, Adasum{.of = SyncTarget::gradients}, cases, joined_gradients<T>, tolerance);
  }
}

TEST(Adasum, JoinsChangesOrGradientsInATree) {
  check_adasum<float>(1e-5);
  check_adasum<double>(1e-13);
}

TEST(Adasum, JoinsLayerByLayer) {
  // The last layer stands still on some ranks, or on all.
  const std::vector<std::int64_t> layers{40, 1, 300, 7};
  const auto change_of = [&](std::size_t layer, int rank, int step) {
    auto change = gradient<double>(Kind::normal, static_cast<std::size_t>(layers[layer]),
                                   rank + 100 * static_cast<int>(layer), step);
    if (layer == 2 && rank % 2 == 1) change = gradient<double>(Kind::normal, 300, 200, step);
    if (layer == 3 && (rank % 2 == 0 || step == 1)) std::ranges::fill(change, 0.0);
    return change;
  };
  for (const int ranks : {2, 3, 4, 8}) {
    on_ranks(ranks, [&](const Group& group) {
      std::vector<Bucket::Slice> slices;
      std::size_t offset = 0;
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        slices.push_back({.name = lockstep::detail::concat("layer", layer),
                          .parameter = at::ones({layers[layer]}, at::kDouble),
                          .offset = offset});
        offset += static_cast<std::size_t>(layers[layer]) + 3;
      }
      Bucket bucket(0, offset, at::kDouble, slices, group);
      const auto exchange = Adasum{}.exchange(bucket);
      for (const auto& slice : bucket.slices()) slice.values.fill_(1);
      for (int step = 0; step < 2; ++step) {
        std::vector<at::Tensor> expected;
        for (std::size_t layer = 0; layer < layers.size(); ++layer) {
          const auto& values = bucket.slices()[layer].values;
          Vectors<double> changes;
          for (int rank = 0; rank < ranks; ++rank) changes.push_back(change_of(layer, rank, step));
          expected.push_back(values + at::tensor(adasum(changes, 0, changes.size()), at::kDouble));
          values.add_(at::tensor(change_of(layer, group.rank(), step), at::kDouble));
        }
        advance(*exchange, step, bucket, group);
        for (std::size_t layer = 0; layer < layers.size(); ++layer) {
          EXPECT_TRUE(bucket.slices()[layer].values.allclose(expected[layer], 1e-12, 1e-12))
              << "layer " << layer << ", step " << step << ", " << ranks << " ranks";
        }
      }
    });
  }
}

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
  on_ranks(ranks, [&](const Group& group) {
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
          for (int rank = 0; rank < ranks; ++rank)
            expected += slice_of(rank, step, slices[i]) / static_cast<double>(ranks);
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

TEST_ON_RANKS(Halves, PassOnWhatIsNotFinite, 2) {
  for (const Strategy& strategy : {Strategy(Fp16{.clip = 10}), Strategy(Bf16{})}) {
    Bucket bucket(0, 1, at::kFloat, {}, world);
    bucket.values().fill_(world.rank() == 1 ? NAN : 1);
    advance(*strategy.exchange(bucket), 0, bucket, world);
    EXPECT_TRUE(bucket.values().isnan().all().item<bool>());
  }
}

TEST_ON_RANKS(PowerSgd, GoesOnAfterAGradientThatIsTooLargeForItsFactors, 2) {
  for (const bool feedback : {false, true}) {
    auto bucket = four_parameters(world, at::kFloat);
    const auto exchange = PowerSgd{.rank = 2, .error_feedback = feedback}.exchange(bucket);
    const auto& matrix = bucket.slices()[0].values;
    matrix.fill_(9e37);
    advance(*exchange, 0, bucket, world);
    EXPECT_FALSE(matrix.isfinite().all().item<bool>());
    for (int step = 1; step < 3; ++step) {
      bucket.values().zero_();
      matrix.fill_(1);
      advance(*exchange, step, bucket, world);
      EXPECT_TRUE(at::allclose(matrix, at::ones_like(matrix), 1e-4, 1e-4)) << step;
    }
  }
}

TEST_ON_RANKS(PowerSgd, SendsLessThanTheBucketAndTakesZerosAndHugeNumbers, 2) {
  auto bucket = four_parameters(world, at::kFloat);
  const auto exchange = PowerSgd{.rank = 2}.exchange(bucket);
  auto state = exchange->state();
  state.at("vector.residual").fill_(1 + world.rank());  // such as one of topk
  exchange->load(state);
  for (int step = 0; step < 3; ++step) {
    bucket.values().zero_();
    if (step == 1) bucket.values()[5] = 1e18;
    const std::size_t before = bytes_sent(world);
    advance(*exchange, step, bucket, world);
    EXPECT_TRUE(bucket.values().isfinite().all().item<bool>()) << step;
    EXPECT_EQ(bucket.slices()[3].values.mean().item<float>(), step == 0 ? 1.5 : 0) << step;
    // Factors of 16 x 12 and 6 x 27, 9 + 100 elements as they are, and a place for each rank.
    EXPECT_EQ(bytes_sent(world) - before, 4U * (2 * (16 + 12) + 2 * (6 + 27) + 109 + 2));
  }
}

}  // namespace
}  // namespace lockstep::testing
