#include "lockstep/partition.h"

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>

#include <vector>

#include "lockstep/error.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

/// Sample i is the number i.
class Numbers : public torch::data::datasets::BatchDataset<Numbers, std::vector<std::size_t>> {
 public:
  explicit Numbers(std::optional<std::size_t> size) : size_(size) {}
  std::vector<std::size_t> get_batch(c10::ArrayRef<std::size_t> indices) override {
    return indices.vec();
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::optional<std::size_t> size_;
};

TEST(PartitionContiguous, CutsEqualPartsInTheOrderOfRanksAndDropsTheTail) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t size : {0, 1, 6, 7, 8, 1000}) {
      const std::size_t each = size / static_cast<std::size_t>(ranks);
      std::size_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const IndexRange part = partition_contiguous(size, ShardSpec{.rank = rank, .ranks = ranks});
        EXPECT_EQ(part.first, next);
        EXPECT_EQ(part.size(), each);
        next = part.last;
      }
      EXPECT_LT(size - next, static_cast<std::size_t>(ranks)) << "no more than the tail is dropped";
    }
  }
}

TEST(PartitionDataset, GivesEachRankItsRun) {
  run_groups(3, [](const Group& group) {
    auto part = partition_dataset(Numbers(11), group);
    ASSERT_EQ(part.size(), 3u);
    const auto first = static_cast<std::size_t>(3 * group.rank());
    EXPECT_EQ(part.range(), (IndexRange{.first = first, .last = first + 3}));
    const std::vector<std::size_t> wanted{2, 0};
    EXPECT_THAT(part.get_batch(wanted), ElementsAre(first + 2, first));
  });
}

TEST(PartitionDataset, IsDrawnFromInAnyOrder) {
  run_groups(1, [](const Group& group) {
    auto part = partition_dataset(Numbers(20), group);
    DistributedSampler sampler(part.size().value(), ShardSpec{}, {.seed = 4});
    auto loader = torch::data::make_data_loader(part, sampler, 6);
    std::vector<std::size_t> drawn;
    for (auto& batch : *loader) drawn.insert(drawn.end(), batch.begin(), batch.end());
    EXPECT_EQ(drawn, epoch_order(20, 4, 0));
  });
}

TEST(PartitionDataset, HasNothingBeyondItsEnd) {
  run_groups(2, [](const Group& group) {
    auto part = partition_dataset(Numbers(5), group);
    const std::vector<std::size_t> beyond{2};
    EXPECT_THAT(refusal([&] { part.get_batch(beyond); }),
                HasSubstr("got index 2, expected one below 2"));
  });
}

TEST(PartitionDataset, NeedsASize) {
  run_groups(1, [](const Group& group) {
    EXPECT_THROW(partition_dataset(Numbers(std::nullopt), group), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::testing
