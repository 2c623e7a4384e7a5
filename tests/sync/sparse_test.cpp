#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"
#include "tests/sync/reference.h"

namespace lockstep::testing {
namespace {

/// Which elements of a rank's gradient with its residual are sent, at a step.
template <class T>
using Choice = std::function<std::vector<std::uint32_t>(const std::vector<T>&, int step)>;
/// Whether all is sent, from the numbers of all ranks' choices.
using Dense = std::function<bool(std::size_t picks, std::size_t n)>;

/// The mean of what is sent; the rest is kept if there is feedback.
template <class T>
Reference<T> sparse_mean(int ranks, std::size_t n, bool feedback, const Choice<T>& choose,
                         const Dense& dense) {
  Vectors<T> residuals(static_cast<std::size_t>(ranks), std::vector<T>(n));
  return [=](const Vectors<T>& gradients, int step) mutable {
    Vectors<T> sums = gradients;
    std::vector<std::vector<std::uint32_t>> chosen;
    std::size_t picks = 0;
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      if (feedback)
        for (std::size_t i = 0; i < n; ++i) sums[rank][i] += residuals[rank][i];
      chosen.push_back(choose(sums[rank], step));
      picks += chosen.back().size();
    }
    const bool all = dense(picks, n);
    std::vector<double> mean(n);
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      residuals[rank] = sums[rank];
      for (std::size_t i = 0; all && i < n; ++i) chosen[rank].resize(n), chosen[rank][i] = i;
      for (const auto i : chosen[rank]) {
        mean[i] += static_cast<double>(sums[rank][i]) / static_cast<double>(sums.size());
        residuals[rank][i] = 0;
      }
    }
    return mean;
  };
}

template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-6 : 1e-14;

/// ⌈ratio·n⌉ with exact integers, and at least one.
std::size_t exact_k(std::size_t hundredths, std::size_t n) {
  return std::max<std::size_t>(1, (hundredths * n + 99) / 100);
}

/// How many elements of n a strategy selects at a step.
using Count = std::function<std::size_t(std::size_t n, int step)>;

template <class T>
void check_top_k(const TopK& strategy, const Count& k) {
  for (const int ranks : rank_counts) {
    compare<T>(
        ranks, strategy, all_cases(ranks),
        [&](std::size_t n) {
          return sparse_mean<T>(
              ranks, n, strategy.error_feedback,
              [&](const std::vector<T>& sum, int step) {
                return kernels::reference::largest<T>(sum, k(sum.size(), step));
              },
              [](std::size_t, std::size_t) { return false; });
        },
        tolerance<T>);
  }
}

Count percent(std::size_t hundredths) {
  return [=](std::size_t n, int) { return exact_k(hundredths, n); };
}

TEST(TopK, SendsTheLargest) {
  check_top_k<float>({.ratio = 0.01}, percent(1));
  check_top_k<double>({.ratio = 0.01}, percent(1));
  check_top_k<double>({.ratio = 1}, percent(100));
  check_top_k<float>({.ratio = 0.3, .error_feedback = false}, percent(30));
  // A quarter, a sixteenth and a sixty-fourth in the quarters of the ramp that steps 0, 1, 2 are
  // in.
  check_top_k<float>({.ratio = 0.01, .ramp = 3}, [](std::size_t n, int step) {
    const std::size_t share = std::size_t{4} << (2 * step);
    return (n + share - 1) / share;
  });
}

// The ramp of arXiv 1712.01887, section 3.3: the sparsity rises over four epochs and then stays at
// 99.9 %.
TEST(TopK, SendsAsManyAsTheRatioSaysAndRampsAsDeepGradientCompressionDoes) {
  const TopK strategy{.ratio = 0.001, .ramp = 400};
  const std::vector<double> sparsity{0.75, 0.9375, 0.984375, 0.996, 0.999};
  for (int part = 0; part < 5; ++part) {
    for (const int step : {100 * part, 100 * part + 99})
      EXPECT_NEAR(1 - strategy.ratio_at(step), sparsity[static_cast<std::size_t>(part)], 1e-4);
  }
  EXPECT_EQ(strategy.k_at(0, 1000), 250U);
  EXPECT_EQ(strategy.k_at(400, 1000), 1U);
  EXPECT_EQ(strategy.k_at(400, 1), 1U);
  EXPECT_EQ(TopK{}.k_at(0, 101), 2U);
  for (const std::size_t hundredths : {1, 7, 30, 100}) {
    for (const std::size_t n : {1, 2, 63, 64, 65, 100, 1000, 12345}) {
      EXPECT_EQ(TopK{.ratio = static_cast<double>(hundredths) / 100}.k_at(0, n),
                exact_k(hundredths, n))
          << hundredths << " % of " << n;
    }
  }
}

template <class T>
void check_threshold(const Threshold& strategy, std::size_t largest = 100'000,
                     bool flushed_too = true) {
  for (const int ranks : rank_counts) {
    auto cases = all_cases(ranks);
    std::erase_if(cases, [&](const Case& c) { return c.n > largest; });
    compare<T>(
        ranks, strategy, cases,
        [&](std::size_t n) {
          return sparse_mean<T>(
              ranks, n, strategy.error_feedback,
              [&](const std::vector<T>& sum, int) {
                return kernels::reference::above<T>(sum, static_cast<T>(strategy.value));
              },
              [](std::size_t picks, std::size_t size) {
                return picks * (sizeof(T) + 4) > size * sizeof(T);
              });
        },
        tolerance<T>, 1, flushed_too);
  }
}

TEST(Threshold, SendsWhatIsAbove) {
  check_threshold<float>({.value = 2.5});
  check_threshold<double>({.value = 2.5});
  check_threshold<float>({.value = 2.5, .error_feedback = false});
  // From nothing to all, near the border where a bucket is sent whole, and of denormals.
  for (const double value : {0.0, 0.7, 1.0, 1.2, 1e35})
    check_threshold<float>({.value = value}, 1000);
  check_threshold<float>({.value = 1e-39}, 1000, false);
}

// It would count as 0, and send everything.
TEST(Threshold, RefusesADenormalWhereDenormalsAreFlushed) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  on_ranks(2, [](const Group& group) {
    for (const double value : {1e-39, 1e-310}) {
      Bucket bucket(0, 64, at::kFloat, {}, group);
      EXPECT_THAT(refusal([&] { Strategy(Threshold{.value = value}).exchange(bucket); }),
                  HasSubstr("expected 0, or 1.18e-38 or more"));
    }
  });
}

TEST_ON_RANKS(Threshold, CopesWithDensitiesThatDifferBetweenRanks, 3) {
  constexpr std::size_t n = 1000;
  for (const bool feedback : {true, false}) {
    Bucket bucket(0, n, at::kFloat, {}, world);
    const auto exchange =
        Strategy(Threshold{.value = 1, .error_feedback = feedback}).exchange(bucket);
    // Ranks 0 and 1 pick all or none in turn, and rank 2 half.
    for (int step = 0; step < 4; ++step) {
      bucket.values().fill_(world.rank() == step % 2 ? 3 : 0);
      if (world.rank() == 2) bucket.values().slice(0, 0, n / 2).fill_(6);
      advance(*exchange, step, bucket, world);
      EXPECT_FLOAT_EQ(bucket.values()[0].item<float>(), 3);
      EXPECT_FLOAT_EQ(bucket.values()[n - 1].item<float>(), 1);
    }
  }
}

// Every parameter begins at a multiple of 64 bytes: the elements between them do not count.
TEST_ON_RANKS(TopK, CountsNoPadding, 2) {
  constexpr std::size_t parameters = 1000;
  constexpr std::size_t stride = 16;
  std::vector<Bucket::Slice> slices;
  for (std::size_t i = 0; i < parameters; ++i) {
    slices.push_back(
        {.name = std::to_string(i), .parameter = at::zeros({1}), .offset = i * stride});
  }
  Bucket bucket(0, parameters * stride, at::kFloat, std::move(slices), world);
  const auto exchange = Strategy(TopK{.ratio = 0.01}).exchange(bucket);
  for (const auto& slice : bucket.slices()) slice.values.fill_(1);
  advance(*exchange, 0, bucket, world);
  EXPECT_EQ(bucket.values().count_nonzero().item<std::int64_t>(), 10);
  EXPECT_EQ(bytes_sent(world), 80U);
}

/// Two named parameters with a gap between them.
Bucket two_parameters(const Group& group, at::ScalarType dtype = at::kFloat) {
  return {0,
          64,
          dtype,
          {{.name = "first", .parameter = at::zeros({4, 5}, dtype), .offset = 0},
           {.name = "second", .parameter = at::zeros({10}, dtype), .offset = 32}},
          group};
}

TEST_ON_RANKS(Strategies, NameANumberThatIsNotFiniteOnEveryRank, 3) {
  for (const Strategy& strategy :
       {Strategy(TopK{.ratio = 0.1}), Strategy(TopK{.ratio = 0.1, .error_feedback = false}),
        Strategy(Threshold{.value = 1}), Strategy(Threshold{.value = 0}), Strategy(Int8{}),
        Strategy(PowerSgd{.rank = 1})}) {
    const auto apart = on_hosts(world, {0, 0, 0});
    for (const auto& group : {world, apart}) {
      auto bucket = two_parameters(group);
      const auto exchange = strategy.exchange(bucket);
      for (const auto& [place, name] : {std::pair(5, "first"), {35, "second"}}) {
        bucket.values().fill_(0.5);
        const auto bad = place == 5 ? std::numeric_limits<float>::quiet_NaN()
                                    : -std::numeric_limits<float>::infinity();
        if (group.rank() == 1) bucket.values()[place].fill_(bad);
        EXPECT_THAT(refusal([&] { advance(*exchange, 0, bucket, group); }),
                    HasSubstr(std::string("parameter ") + name + " on rank 1 has NaN or Inf"));
        // The group is usable, and nothing of it comes back.
        for (const auto& [what, values] : exchange->state())
          EXPECT_TRUE(values.isfinite().all().item<bool>()) << what;
        bucket.values().fill_(4);
        advance(*exchange, 1, bucket, group);
        EXPECT_TRUE(bucket.values().isfinite().all().item<bool>());
      }
    }
  }
}

TEST_ON_RANKS(TopK, KeepsWhatARefusedStepHasSelected, 2) {
  auto bucket = two_parameters(world);
  const auto exchange = TopK{.ratio = 0.01}.exchange(bucket);  // one element
  bucket.values()[0] = 4;
  bucket.values()[1] = 3;
  advance(*exchange, 0, bucket, world);
  EXPECT_EQ(bucket.values().sum().item<float>(), 4);
  bucket.values().zero_();
  if (world.rank() == 1) bucket.values()[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal([&] { advance(*exchange, 1, bucket, world); }), "");
  bucket.values().zero_();
  advance(*exchange, 2, bucket, world);
  EXPECT_EQ(bucket.values()[1].item<float>(), 3);
}

TEST_ON_RANKS(Threshold, CountsItsBytes, 2) {
  Bucket bucket(0, 1000, at::kFloat, {}, world);
  const auto above = Strategy(Threshold{.value = 2}).exchange(bucket);
  bucket.values().slice(0, 0, 10).fill_(3);
  advance(*above, 0, bucket, world);
  EXPECT_EQ(bytes_sent(world), 96U);
}

TEST_ON_RANKS(Strategies, RefuseWhatTheyCannotCarryAndWhatIsOutOfRange, 1) {
  const auto expect_refused = [&](at::ScalarType dtype, const std::vector<Strategy>& strategies) {
    const Bucket bucket(0, 8, dtype, {}, world);
    for (const auto& strategy : strategies)
      EXPECT_THROW(strategy.exchange(bucket), InvalidArgument) << dtype << strategy.text();
  };
  expect_refused(at::kHalf, {TopK{}, Threshold{}});
  expect_refused(at::kDouble, {Fp16{}, Bf16{}, Int8{}});
  expect_refused(
      at::kFloat,
      {TopK{.ratio = 0}, TopK{.ratio = -0.1}, TopK{.ratio = 1.1}, TopK{.ratio = std::nan("")},
       TopK{.ramp = -1}, Threshold{.value = -1}, Threshold{.value = std::nan("")}, Fp16{.clip = -1},
       Fp16{.clip = 1e300}, Fp16{.clip = std::nan("")}, PartialUpdate{.of = SyncTarget::none},
       LocalSgd{.period = 0}, PostLocalSgd{.start = -1}, PostLocalSgd{.period = 0},
       warmup(AllReduce{}, -1)});
}

}  // namespace
}  // namespace lockstep::testing
