#include "lockstep/metrics.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest = std::numeric_limits<double>::max();

/// Sums in units of 2^-40, in 128 bits: exact, and rounded once by the compiler's conversion.
__extension__ using Wide = __int128;

struct Sample {
  std::int64_t units;  ///< of 2^-40
  int weight;

  double value() const { return std::ldexp(static_cast<double>(units), -40); }
};

double in_ones(Wide units) { return std::ldexp(static_cast<double>(units), -40); }

/// Of very different sizes, with both signs: a plain sum of float64 rounds nearly every addition.
std::vector<Sample> make_samples(std::size_t count) {
  std::mt19937_64 random(5);
  std::vector<Sample> samples(count);
  for (auto& [units, weight] : samples) {
    units = static_cast<std::int64_t>(random() >> 11 >> random() % 50);
    if (random() % 2 == 0) units = -units;
    weight = static_cast<int>(random() % 5);
  }
  return samples;
}

double sum_of(std::vector<double> values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, RoundsOnce) {
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({largest, 1, -largest}), 1);
  EXPECT_EQ(sum_of({1, 0x1p-53}), 1) << "a tie goes to the even number";
  EXPECT_EQ(sum_of({1, 0x1p-53, 0x1p-1074}), 1 + 0x1p-52);
  EXPECT_EQ(sum_of({1, 0x1p-52, 0x1p-53}), 1 + 0x1p-51);
  EXPECT_EQ(sum_of({-1, -0x1p-53, -0x1p-1074}), -1 - 0x1p-52);
  EXPECT_EQ(sum_of({0x1p-1074, 0x1p-1074}), 0x1p-1073);
  EXPECT_EQ(sum_of({0x1p-1022, -0x1p-1074}), 0x1p-1022 - 0x1p-1074);
  EXPECT_EQ(sum_of({largest, largest}), infinity);
  EXPECT_EQ(sum_of({largest, largest, -largest}), largest);
  EXPECT_EQ(sum_of({-largest, -largest}), -infinity);
  EXPECT_EQ(sum_of({infinity, 1}), infinity);
  EXPECT_EQ(sum_of({-infinity, largest}), -infinity);
  EXPECT_TRUE(std::isnan(sum_of({infinity, -infinity})));
  EXPECT_TRUE(std::isnan(sum_of({1, std::nan("")})));
}

TEST(ExactSum, IsThatOfWideIntegers) {
  const auto samples = make_samples(20000);
  ExactSum sum;
  ExactSum products;
  Wide expected = 0;
  Wide expected_products = 0;
  double plain = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    sum.add(samples[i].value());
    plain += samples[i].value();
    expected += samples[i].units;
    // Of 53 bits and 40: a float64 does not hold the product.
    const std::int64_t factor = samples[i].units >> 13;
    products.add_product(samples[i].value(), static_cast<double>(factor));
    expected_products += Wide{samples[i].units} * factor;
    if (i % 1000 != 0) continue;
    ASSERT_EQ(sum.value(), in_ones(expected)) << i;
    ASSERT_EQ(products.value(), in_ones(expected_products)) << i;
  }
  EXPECT_NE(plain, in_ones(expected)) << "the samples are too simple";
}

TEST(ExactSum, LosesNothingInTheWholeRange) {
  std::mt19937_64 random(7);
  std::vector<double> values;
  while (values.size() < 4000) {
    const auto value = std::bit_cast<double>(static_cast<std::uint64_t>(random()));
    if (!std::isfinite(value)) continue;
    values.push_back(value);
    values.push_back(-value);
  }
  for (const double rest : {0.0, 3.0, 0x1p-1074, -1e-310, 1e300}) {
    std::shuffle(values.begin(), values.end(), random);
    values.push_back(rest);
    EXPECT_EQ(sum_of(values), rest);
    values.pop_back();
  }
}

TEST(ExactSum, TakesEveryInteger) {
  ExactSum sum;
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t value : {most, least, std::int64_t{-5}, most, -most}) sum.add(value);
  EXPECT_EQ(sum.value(), -6);
  Sum unsigned_sum;
  unsigned_sum.add(std::numeric_limits<std::uint64_t>::max());
  unsigned_sum.add(1);
  unsigned_sum.add(0.5F);
  EXPECT_EQ(unsigned_sum.value(), 0x1p64);
  const auto highest = torch::full({2}, -1, torch::kLong).view(at::kUInt64);
  unsigned_sum.add(highest);
  EXPECT_EQ(unsigned_sum.value(), 0x1p64 + 0x1p65);
  Mean mean;
  mean.add(highest);
  EXPECT_EQ(mean.value(), 0x1p64);
}

TEST_ON_RANKS(Metrics, MeanAndSumAreThoseOfOneProcess, 1, 2, 3, 7) {
  const auto samples = make_samples(1000);
  Wide sum = 0;
  Wide weighted = 0;
  std::int64_t weights = 0;
  for (const auto& [units, weight] : samples) {
    sum += units;
    weighted += Wide{units} * weight;
    weights += weight;
  }
  const double mean = in_ones(weighted) / static_cast<double>(weights);
  const int ranks = world.size();
  for (const bool backwards : {false, true}) {
    // Rank r owns r samples of every few; rank 0 has none, unless it is alone.
    std::vector<int> owners;
    for (int rank = 1; rank < ranks; ++rank) owners.insert(owners.end(), rank, rank);
    if (owners.empty()) owners = {0};
    Mean own_mean;
    Sum own_sum;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto& sample = samples[backwards ? samples.size() - 1 - i : i];
      if (owners[i % owners.size()] != world.rank()) continue;
      own_mean.add(sample.value(), sample.weight);
      own_sum.add(sample.value());
    }
    const double before = own_sum.value();
    const auto [all_mean, all_sum] = compute(world, own_mean, own_sum);
    EXPECT_EQ(all_mean, mean) << "the same bits, on " << ranks << " ranks";
    EXPECT_EQ(all_sum, in_ones(sum)) << "the same bits, on " << ranks << " ranks";
    EXPECT_EQ(own_sum.value(), before) << "compute() changes no metric";
    EXPECT_EQ(compute(world, own_mean), mean);
  }
}

TEST_ON_RANKS(Metrics, NoSamplesAndTensorsOfAnyRealType, 1, 2, 3, 7) {
  const int ranks = world.size();
  Mean mean;
  Sum sum;
  mean.add(torch::empty({0}));
  mean.add(3, 0);
  const auto [no_mean, no_sum] = compute(world, mean, sum);
  EXPECT_TRUE(std::isnan(no_mean));
  EXPECT_EQ(no_sum, 0);
  Mean of_last;
  if (world.rank() == ranks - 1) of_last.add(7);
  EXPECT_EQ(compute(world, of_last), 7);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                           torch::kInt, torch::kLong, torch::kByte, torch::kBool}) {
    const at::Tensor values = torch::tensor({{1, 0, 1}, {0, 0, 1}}).to(dtype);
    mean.add(values.t());  // not contiguous
    mean.add(values, 2);
    sum.add(values);
  }
  mean.add(torch::tensor(4.0, torch::requires_grad()), 16);
  const auto [all_mean, all_sum] = compute(world, mean, sum);
  EXPECT_DOUBLE_EQ(all_mean, (8 * 3 * 3 + 4 * 16) / (8 * 6 * 3 + 16.0));
  EXPECT_EQ(all_sum, 8 * 3 * ranks);
  Sum large;
  large.add(torch::tensor({(std::int64_t{1} << 60) + 1, -(std::int64_t{1} << 60)}));
  EXPECT_EQ(large.value(), 1) << "no float64 holds the first";
}

TEST(Metrics, WeightsOfElementsAndLazyNegatives) {
  Mean mean;
  const double nan = std::nan("");
  mean.add(torch::tensor({{1.0, 2.0}, {nan, 8.0}}), torch::tensor({{1, 1}, {0, 2}}));
  EXPECT_EQ(mean.value(), (1.0 + 2 + 16) / 4) << "a padded element has the weight 0";
  EXPECT_EQ(mean.weight(), 4);
  Mean rows;
  rows.add(torch::tensor({{1.0, 2.0}, {5.0, 8.0}}), torch::tensor({{3.0}, {1.0}}));
  EXPECT_EQ(rows.value(), (3 * 3.0 + 13) / 8);
  rows.add(nan);
  EXPECT_TRUE(std::isnan(rows.value()));
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kLong, torch::kHalf}) {
    const auto values = torch::_neg_view(torch::arange(4, dtype));
    Mean of_negatives;
    Sum sum;
    of_negatives.add(values);
    sum.add(values);
    EXPECT_EQ(of_negatives.value(), -1.5) << dtype;
    EXPECT_EQ(sum.value(), -6) << dtype;
  }
}

TEST(Metrics, WhatIsRefused) {
  Mean mean;
  Sum sum;
  for (const double weight : {-1.0, infinity, std::nan("")})
    EXPECT_THROW(mean.add(1, weight), InvalidArgument);
  for (const auto& weights : {torch::tensor({1, -1}), torch::ones(3)})
    EXPECT_THROW(mean.add(torch::ones(2), weights), InvalidArgument);
  EXPECT_THROW(mean.add(at::Tensor()), InvalidArgument);
  for (const auto& values :
       {at::Tensor(), torch::ones(2, torch::kComplexFloat), torch::ones(2).to_sparse()})
    EXPECT_THROW(sum.add(values), InvalidArgument);
  EXPECT_EQ(mean.weight(), 0) << "nothing was added before the refusal";
}

TEST_ON_RANKS(Metrics, CustomStatesOfEveryKind, 1, 2, 3, 7) {
  constexpr std::int64_t large = (std::int64_t{1} << 59) + 1;  // a float64 rounds it
  const int ranks = world.size(), rank = world.rank();
  double sum = rank + 0.5, lowest = 10.0 - rank, highest = -10.0 - rank;
  double no_number = rank == ranks / 2 ? std::nan("") : rank, nor_this = no_number;
  std::int64_t count = rank % 2 == 0 ? large + rank : -rank;
  std::int64_t first = large + rank, last = -large - rank;
  at::Tensor counts = torch::tensor({std::int64_t{rank}, -large}).view({1, 2});
  at::Tensor sums = torch::tensor({0.0, 0.25 * rank}, torch::kDouble);
  at::Tensor lows = torch::full({3}, infinity, torch::kDouble);
  at::Tensor highs = torch::full({3}, -100, torch::kLong);
  lows[rank % 3] = rank;
  highs[0] = -rank - 1;
  const at::Tensor handle = counts, copy = counts.clone();
  combine_over_ranks(world, [&](MetricCombiner& combiner) {
    for (double* each : {&lowest, &no_number}) combiner.min(*each);
    for (double* each : {&highest, &nor_this}) combiner.max(*each);
    combiner.sum(sum);
    combiner.sum(count);
    combiner.min(first);
    combiner.max(last);
    combiner.sum(counts);
    combiner.sum(sums);
    combiner.min(lows);
    combiner.max(highs);
  });
  const int rank_sum = ranks * (ranks - 1) / 2;
  std::int64_t expected = 0;
  for (int other = 0; other < ranks; ++other) expected += other % 2 == 0 ? large + other : -other;
  EXPECT_DOUBLE_EQ(sum, rank_sum + 0.5 * ranks);
  EXPECT_EQ(count, expected);
  EXPECT_EQ(lowest, 11.0 - ranks);
  EXPECT_EQ(highest, -10);
  EXPECT_TRUE(std::isnan(no_number) && std::isnan(nor_this));
  EXPECT_EQ(first, large);
  EXPECT_EQ(last, -large);
  EXPECT_TRUE(counts.equal(torch::tensor({std::int64_t{rank_sum}, -large * ranks}).view({1, 2})));
  EXPECT_TRUE(sums.equal(torch::tensor({0.0, 0.25 * rank_sum}, torch::kDouble)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lows[i].item<double>(), i < ranks ? i : infinity);
  EXPECT_TRUE(highs.equal(torch::tensor({-1, -100, -100}, torch::kLong)));
  EXPECT_TRUE(handle.equal(copy)) << "other handles keep their values";
}

TEST_ON_RANKS(Metrics, WhatCannotBeCombinedIsAnErrorOnEveryRank, 3) {
  std::int64_t count = std::int64_t{1} << 62;
  const auto sum = [&](MetricCombiner& combiner) { combiner.sum(count); };
  EXPECT_THROW(combine_over_ranks(world, sum), InvalidArgument) << "beyond int64";
  const auto different = [&](MetricCombiner& combiner) {
    double lowest = 0, highest = 0;
    if (world.rank() == 1) combiner.max(highest);
    combiner.min(lowest);
    if (world.rank() != 1) combiner.max(highest);
  };
  EXPECT_THAT(refusal([&] { combine_over_ranks(world, different); }),
              HasSubstr("differ between ranks"));
  for (const at::Tensor& values : {at::Tensor(), torch::zeros(2), torch::zeros(2, torch::kInt),
                                   torch::zeros({2, 2}, torch::kDouble).to_sparse()}) {
    const auto sum_values = [tensor = values](MetricCombiner& combiner) mutable {
      combiner.sum(tensor);
    };
    EXPECT_THROW(combine_over_ranks(world, sum_values), InvalidArgument)
        << "neither float64 nor int64";
  }
  count = world.rank();
  combine_over_ranks(world, sum);
  EXPECT_EQ(count, 3) << "the group stays usable";
}

}  // namespace
}  // namespace lockstep::testing
