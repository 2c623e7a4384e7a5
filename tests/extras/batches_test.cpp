#include "lockstep/batches.h"

#include <torch/types.h>

#include <iterator>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "lockstep/partition.h"
#include "lockstep/uneven_inputs.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

struct Numbers {
  at::Tensor data;
};

/// Fills batches with 0, 1, …, end − 1, and begins anew after their end.
class Counter {
 public:
  explicit Counter(int end, int broken = -1) : end_(end), broken_(broken) {}

  bool operator()(Numbers& batch) {
    EXPECT_FALSE(batch.data.defined());
    if (next_ == broken_) throw std::runtime_error("cannot read it");
    if (next_ == end_) {
      next_ = 0;
      return false;
    }
    batch.data = torch::tensor(next_++);
    return true;
  }

 private:
  int end_;
  int broken_;
  int next_ = 0;
};

std::vector<int> up_to(int end) {
  std::vector<int> all(static_cast<std::size_t>(end));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class Batches : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, Batches, ::testing::Values(0, 1));

TEST_P(Batches, AreThoseOfTheLoaderInEveryPass) {
  for (const int count : {0, 1, 2, 7}) {
    Counter loader(count);
    auto all = batches<Numbers>(loader, {.workers = GetParam(), .device = at::kCPU});
    static_assert(std::input_iterator<decltype(all.begin())>);
    for (int pass = 0; pass < 3; ++pass) {
      std::vector<int> seen;
      for (const auto& batch : all) seen.push_back(batch.data.item<int>());
      EXPECT_EQ(seen, up_to(count));
    }
  }
}

TEST_P(Batches, MayBeCountedByJoinUneven) {
  run_groups(3, [](const Group& group) {
    const int own = 2 * (2 - group.rank());  // 4, 2 and 0
    auto all = batches<Numbers>(Counter(own), {.workers = GetParam()});
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<int> seen;
      int turns = 0;
      for (const auto& batch : join_uneven(all, group, until_last)) {
        ++turns;
        if (batch) seen.push_back(batch->data.item<int>());
      }
      EXPECT_EQ(seen, up_to(own));
      EXPECT_EQ(turns, 4);
    }
    for ([[maybe_unused]] const auto& batch : join_uneven(all, group)) ADD_FAILURE();
    auto fill = [left = 2](torch::data::Example<>& batch) mutable {
      batch = {torch::arange(7), torch::arange(7)};
      return left-- > 0;
    };
    auto examples = batches<torch::data::Example<>>(fill);
    std::int64_t rows = 0;  // of two batches of 7: 2 + 2 + 3
    for (const auto& batch : scatter_from_rank0(&examples, group)) rows += batch.data.size(0);
    EXPECT_EQ(rows, group.rank() == 2 ? 6 : 4);
  });
}

TEST_P(Batches, AFailureNamesTheBatchAndEndsThePass) {
  auto all = batches<Numbers>(Counter(5, 2), {.workers = GetParam()});
  std::vector<int> seen;
  EXPECT_THAT(message_of<DataError>([&] {
                for (const auto& batch : all) seen.push_back(batch.data.item<int>());
              }),
              HasSubstr("batch 2, index 2: cannot read it"));
  EXPECT_EQ(seen, up_to(2));
}

TEST(BatchesOptions, ThatMakeBatchesAreRefused) {
  for (const PrefetchOptions& options : std::vector<PrefetchOptions>{
           {.workers = 2}, {.batch_size = 8, .workers = 1}, {.drop_last = true}})
    EXPECT_THROW(batches<Numbers>(Counter(1), options), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
