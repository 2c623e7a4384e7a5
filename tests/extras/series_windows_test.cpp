#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::testing {
namespace {

using Series = torch::data::Example<>;

/// Rows [first + t, −(first + t)], with targets 1000 + first + t.
Series series_of(std::int64_t rows, double first = 0) {
  const at::Tensor value = torch::arange(rows, at::kDouble) + first;
  return {torch::stack({value, -value}, 1), value + 1000};
}

TEST(SeriesWindows, AreTheRowsOfTheDefinition) {
  for (const std::int64_t rows : {0, 1, 4, 5, 23}) {
    for (const SeriesWindowOptions options : std::vector<SeriesWindowOptions>{
             {},
             {.length = 3, .horizon = 2},
             {.length = 4, .horizon = 0, .stride = 3},
             {.length = 2, .horizon = 1, .stride = 5, .target_length = 3}}) {
      const auto [data, target] = series_of(rows);
      SeriesWindows windows({data, target}, options);
      const std::int64_t target_rows = std::max<std::int64_t>(1, options.target_length);
      std::size_t count = 0;
      for (std::int64_t start = 0;; start += options.stride, ++count) {
        const std::int64_t ahead = start + options.length - 1 + options.horizon;
        if (ahead + target_rows > rows) break;
        const Series got = windows.get_batch(count);
        ASSERT_TRUE(got.data.equal(data.slice(0, start, start + options.length).unsqueeze(0)));
        const at::Tensor rows_ahead = target.slice(0, ahead, ahead + target_rows);
        ASSERT_TRUE(
            got.target.equal(options.target_length > 0 ? rows_ahead.unsqueeze(0) : rows_ahead));
      }
      EXPECT_EQ(windows.size(), count);
      EXPECT_THROW(windows.get_batch(count), DataError);
      EXPECT_EQ(windows.get_batch({}).data.sizes(), at::IntArrayRef({0, options.length, 2}));
    }
  }
}

TEST(SeriesWindows, CrossNoTwoSeries) {
  SeriesWindows windows({series_of(5, 0), series_of(2, 100), series_of(0), series_of(4, 200)},
                        {.length = 3});
  ASSERT_EQ(windows.size(), 3u);
  const Series all = windows.get_batch(std::vector<std::size_t>{2, 0, 1});
  EXPECT_EQ(all.data.sizes(), at::IntArrayRef({3, 3, 2}));
  EXPECT_TRUE(
      all.data.select(2, 0).select(1, 0).equal(torch::tensor({200.0, 0.0, 1.0}, at::kDouble)));
  EXPECT_TRUE(all.target.equal(torch::tensor({1203.0, 1003.0, 1004.0}, at::kDouble)));
}

TEST(SeriesWindows, PartsOfASplitHaveNoRowInCommon) {
  const SeriesWindows whole({series_of(11), series_of(20, 100)},
                            {.length = 2, .horizon = 2, .target_length = 2});
  auto [training, validation] = whole.split(0.6);
  EXPECT_EQ(training.size(), 2u + 8u);
  EXPECT_EQ(validation.size(), 1u + 4u);
  std::vector<std::size_t> all(training.size().value());
  std::iota(all.begin(), all.end(), 0);
  // The last row before the split of each series, and the first one after it.
  const at::Tensor last = training.get_batch(all).target - 1000;
  EXPECT_EQ(last.slice(0, 0, 2).max().item<double>(), 5);
  EXPECT_EQ(last.max().item<double>(), 111);
  all.resize(validation.size().value());
  const at::Tensor first = validation.get_batch(all).data.select(2, 0);
  EXPECT_EQ(first.min().item<double>(), 6);
  EXPECT_EQ(first.slice(0, 1).min().item<double>(), 112);
  EXPECT_EQ(whole.split(1).first.size(), whole.size());
  EXPECT_THROW(whole.split(1.1), InvalidArgument);
}

TEST(SeriesWindows, WrongSeriesAndOptionsAreRefused) {
  const auto [data, target] = series_of(3);
  for (const std::vector<Series>& series :
       std::vector<std::vector<Series>>{{},
                                        {Series{}},
                                        {{data, at::Tensor()}},
                                        {{torch::tensor(1), target}},
                                        {{data, target.slice(0, 1)}},
                                        {{data, target}, {data.slice(1, 1), target}},
                                        {{data, target}, {data, target.to(at::kFloat)}}})
    EXPECT_THROW(SeriesWindows{series}, InvalidArgument);
  for (const SeriesWindowOptions options : std::vector<SeriesWindowOptions>{
           {.length = 0}, {.horizon = -1}, {.stride = 0}, {.target_length = -1}})
    EXPECT_THROW(SeriesWindows({data, target}, options), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
