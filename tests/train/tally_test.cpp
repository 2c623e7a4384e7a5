#include "lockstep/train/tally.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "tests/ranks.h"

namespace lockstep {
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

TEST(Tally, NothingCountedIsZeroAndNotNan) {
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
    testing::run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      const Group group(std::move(communicator));
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
    });
  }
}

}  // namespace
}  // namespace lockstep
