#include <gtest/gtest.h>

#include "plan/forecast.h"

namespace lockstep::testing {
namespace {

/// Values of Measurement::over_network.
struct Over {
  static constexpr bool memory = false;
  static constexpr bool network = true;
};

constexpr double MB = 1e6;

TEST(PlanFit, FindsWhatMadeTheTimes) {
  // Two synchronizations of 1 ms and 2·N·S bytes of 2 ns; 3 messages of 10 ms and S bytes of 5 ns,
  // with the ranks' own work left out.
  Costs costs;
  costs.synchronization_rank = 0;
  costs.message = 0;
  const auto fitted = plan::fit(costs, {{Over::memory, 2, 1 * MB, 0.002 + 0.008},
                                        {Over::memory, 2, 4 * MB, 0.002 + 0.032},
                                        {Over::memory, 3, 1 * MB, 0.002 + 0.012}});
  EXPECT_NEAR(fitted.synchronization, 1e-3, 1e-12);
  EXPECT_NEAR(fitted.moved_byte, 2e-9, 1e-18);
  EXPECT_EQ(fitted.remote_message, costs.remote_message);
  EXPECT_EQ(fitted.sent_byte, costs.sent_byte);

  // Summing reads and writes (N+1)/N·S bytes: 1.5 MB, which take 3 ms by the fit above.
  Costs between = fitted;
  const auto both = plan::fit(between, {{Over::network, 2, 1 * MB, 0.03 + 0.005 + 0.003},
                                        {Over::network, 2, 8 * MB, 0.03 + 0.04 + 0.024}});
  EXPECT_NEAR(both.remote_message, 1e-2, 1e-12);
  EXPECT_NEAR(both.sent_byte, 5e-9, 1e-18);
  EXPECT_EQ(both.synchronization, fitted.synchronization);
}

TEST(PlanFit, KeepsWhatNothingIsKnownOf) {
  const Costs costs;
  EXPECT_EQ(plan::fit(costs, {}).moved_byte, costs.moved_byte);
  // One size tells the byte, beside synchronizations as they were.
  const double synchronizations = 2 * costs.synchronization;
  const auto one = plan::fit(costs, {{Over::memory, 2, 1 * MB, synchronizations + 4 * MB * 3e-9}});
  EXPECT_EQ(one.synchronization, costs.synchronization);
  EXPECT_NEAR(one.moved_byte, 3e-9, 1e-18);
  // A larger buffer in less time than a smaller one: no meeting takes less than nothing.
  const auto odd =
      plan::fit(costs, {{Over::memory, 2, 1 * MB, 0.001}, {Over::memory, 2, 9 * MB, 0.02}});
  EXPECT_GE(odd.synchronization, 0);
  EXPECT_GT(odd.moved_byte, 0);
  // One rank exchanges nothing.
  EXPECT_EQ(plan::fit(costs, {{Over::memory, 1, 1 * MB, 0.001}}).moved_byte, costs.moved_byte);
}

}  // namespace
}  // namespace lockstep::testing
