#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "lockstep/error.h"
#include "lockstep/metrics.h"
#include "tests/groups.h"

namespace lockstep::testing {
namespace {

TEST(Tally, CountsRightAnswers) {
  Tally tally;
  tally.add(torch::tensor(2.0F), torch::tensor({{0.1, 0.9}, {0.8, 0.2}, {0.3, 0.7}}),
            torch::tensor({1, 1, 1}, torch::kLong));
  tally.add(torch::tensor(6.0F), torch::tensor({{5.0, 1.0}}), torch::tensor({0}, torch::kLong));
  const Score score = tally.score();
  EXPECT_EQ(score.samples, 4);
  EXPECT_DOUBLE_EQ(score.accuracy, 3.0 / 4);
  EXPECT_DOUBLE_EQ(score.loss, (3 * 2.0 + 1 * 6.0) / 4) << "a short batch weighs less";
}

TEST(Tally, CountsAnswersAmongTheBest) {
  // Sample i's outputs fall from class i on, so class c comes (c - i) mod 4 places behind the best.
  at::Tensor outputs = torch::zeros({4, 4});
  for (int i = 0; i < 4; ++i)
    for (int c = 0; c < 4; ++c) outputs[i][c] = -((c - i + 4) % 4);
  const at::Tensor targets = torch::tensor({0, 2, 0, 3}, torch::kLong);  // places 0, 1, 2, 0
  const double expected[] = {2.0 / 4, 3.0 / 4, 4.0 / 4, 4.0 / 4, 4.0 / 4};
  for (std::int64_t k = 1; k <= 5; ++k) {
    Tally tally(k);
    tally.add(torch::tensor(1.0F), outputs, targets);
    tally.add(torch::tensor(1.0F), outputs.slice(0, 0, 2), targets.slice(0, 0, 2));
    EXPECT_DOUBLE_EQ(tally.score().accuracy, (2 + 1) / 6.0);
    EXPECT_DOUBLE_EQ(tally.score().top, (4 * expected[k - 1] + (k == 1 ? 1 : 2)) / 6) << k;
  }
  EXPECT_THROW(Tally(0), InvalidArgument);
}

TEST(Tally, AnEmptyBatchCountsNothing) {
  Tally tally(2);
  tally.add(torch::tensor(NAN), torch::zeros({0, 3}), torch::zeros({0}, torch::kLong));
  EXPECT_EQ(tally.score().samples, 0);
  EXPECT_EQ(tally.score().loss, 0);
  EXPECT_EQ(Tally().score().loss, 0);
  EXPECT_EQ(Tally().score().accuracy, 0);
}

TEST(Tally, RefusesShapesThatDoNotBelongTogether) {
  Tally tally;
  EXPECT_THROW(
      tally.add(torch::tensor(1.0F), torch::zeros({3, 2}), torch::zeros({2}, torch::kLong)),
      InvalidArgument);
  EXPECT_THROW(tally.add(torch::tensor(1.0F), torch::zeros({3}), torch::zeros({3}, torch::kLong)),
               InvalidArgument);
}

TEST(Tally, IsExactOverRanksOfUnequalSizes) {
  for (const int ranks : {1, 2, 3, 7}) {
    run_groups(ranks, [&](const Group& group) {
      Tally tally;
      // Rank 0 has nothing; rank r has r samples of loss r, one of them right.
      if (group.rank() > 0) tally.add(group.rank(), 1, group.rank());
      const Score score = tally.score(group);
      double samples = 0;
      double loss = 0;
      for (int rank = 1; rank < ranks; ++rank) {
        samples += rank;
        loss += rank * rank;
      }
      EXPECT_EQ(score.samples, static_cast<std::int64_t>(samples));
      EXPECT_DOUBLE_EQ(score.loss, ranks == 1 ? 0 : loss / samples);
      EXPECT_DOUBLE_EQ(score.accuracy, ranks == 1 ? 0 : (ranks - 1) / samples);
      EXPECT_EQ(score.top, score.accuracy);
    });
  }
}

TEST(Throughput, IsOfAllSamplesInTheSlowestRanksTime) {
  for (const int ranks : {1, 2, 3, 7}) {
    run_groups(ranks, [&](const Group& group) {
      // Rank r has 10 r samples and takes 8 - r seconds: rank 0 is the slowest.
      const double rate = throughput(10 * group.rank(), 8.0 - group.rank(), group);
      EXPECT_DOUBLE_EQ(rate, 10 * ranks * (ranks - 1) / 2 / 8.0);
      EXPECT_EQ(throughput(0, 0, group), 0) << "nothing was done, in no time";
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
