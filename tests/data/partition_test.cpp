#include "lockstep/partition.h"

#include <ATen/ops/zeros.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>

#include "lockstep/autocast.h"
#include "lockstep/datasets.h"
#include "lockstep/learning_rate.h"
#include "lockstep/metrics.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "lockstep/strategy.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

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
    const std::vector<std::size_t> wanted{2, 0}, beyond{3};
    EXPECT_THAT(part.get_batch(wanted), ElementsAre(first + 2, first));
    EXPECT_THAT(refusal([&] { part.get_batch(beyond); }),
                HasSubstr("got index 3, expected one below 3"));
    DistributedSampler sampler(3, ShardSpec{}, {.seed = 4});
    auto loader = torch::data::make_data_loader(part, sampler, 2);
    std::vector<std::size_t> drawn, expected;
    for (auto& batch : *loader) drawn.insert(drawn.end(), batch.begin(), batch.end());
    for (const std::size_t index : epoch_order(3, 4, 0)) expected.push_back(first + index);
    EXPECT_EQ(drawn, expected);
    EXPECT_THROW(partition_dataset(Numbers(std::nullopt), group), InvalidArgument);
  });
}

/// The kind and the operation of the call's error, which no rank has caused.
std::string fields(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string kind = name(error.kind());
    EXPECT_EQ(fields_of(error), kind + " by rank -1 in " + error.operation() + ", cause " + kind);
    return kind + " in " + error.operation();
  }
  return "no error";
}

TEST(DataErrorFields, OfArgumentsAndFiles) {
  const ShardSpec bad{.rank = 2, .ranks = 2};
  EXPECT_EQ(fields([&] { DistributedSampler(5, bad); }), "invalid_argument in DistributedSampler");
  EXPECT_EQ(fields([&] { EvaluationSampler(5, bad); }), "invalid_argument in EvaluationSampler");
  EXPECT_EQ(fields([&] { partition_contiguous(5, bad); }),
            "invalid_argument in partition_contiguous");
  EXPECT_EQ(fields([] { augment(at::zeros({3}), {}, 0, {}); }), "invalid_argument in augment");
  EXPECT_EQ(fields([] { Autocast autocast(at::kLong); }), "invalid_argument in Autocast");
  EXPECT_EQ(fields([] { scaled_rate(0.1, 0, 1); }), "invalid_argument in scaled_rate");
  EXPECT_EQ(fields([] { Tally tally(0); }), "invalid_argument in Tally");
  EXPECT_EQ(fields([] { Mean().add(1, -1); }), "invalid_argument in Mean");
  EXPECT_EQ(fields([] { parse_strategy("nosuch"); }), "invalid_argument in strategy");
  EXPECT_EQ(fields([] { Cifar10(at::zeros({1}), at::zeros({1})); }), "invalid_argument in Cifar10");
  EXPECT_EQ(fields([] { detail::checked({.batch_size = 0}, true); }),
            "invalid_argument in PrefetchLoader");
  const TemporaryFolder empty;
  EXPECT_EQ(fields([&] { Mnist(empty.path()); }), "data in Mnist");
  EXPECT_EQ(fields([&] { Cifar10(empty.path()); }), "data in Cifar10");
#ifdef LOCKSTEP_IMAGES
  EXPECT_EQ(fields([&] { ImageFolder(empty.path(), {.size = 8}); }), "data in ImageFolder");
#endif
}

}  // namespace
}  // namespace lockstep::testing
