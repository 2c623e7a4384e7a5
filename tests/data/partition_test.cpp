#include "lockstep/partition.h"

#include <ATen/ops/zeros.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>

#include "core/text.h"
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

/// The fields of the call's error, which no rank has caused.
void expect_fields(const char* kind, const char* operation, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << operation << ": no error";
  } catch (const Error& error) {
    EXPECT_EQ(fields_of(error),
              detail::concat(kind, " by rank -1 in ", operation, ", cause ", kind));
  }
}

TEST(DataErrorFields, OfArgumentsAndFiles) {
  const ShardSpec bad{.rank = 2, .ranks = 2};
  const std::pair<const char*, std::function<void()>> of_arguments[] = {
      {"DistributedSampler", [&] { DistributedSampler(5, bad); }},
      {"EvaluationSampler", [&] { EvaluationSampler(5, bad); }},
      {"partition_contiguous", [&] { partition_contiguous(5, bad); }},
      {"augment", [] { augment(at::zeros({3}), {}, 0, {}); }},
      {"Autocast", [] { Autocast autocast(at::kLong); }},
      {"scaled_rate", [] { scaled_rate(0.1, 0, 1); }},
      {"Tally", [] { Tally tally(0); }},
      {"Mean", [] { Mean().add(1, -1); }},
      {"strategy", [] { parse_strategy("nosuch"); }},
      {"Cifar10", [] { Cifar10(at::zeros({1}), at::zeros({1})); }},
      {"PrefetchLoader", [] { detail::checked({.batch_size = 0}, true); }}};
  for (const auto& [operation, call] : of_arguments)
    expect_fields("invalid_argument", operation, call);
  const TemporaryFolder empty;
  expect_fields("data", "Mnist", [&] { Mnist(empty.path()); });
  expect_fields("data", "Cifar10", [&] { Cifar10(empty.path()); });
#ifdef LOCKSTEP_IMAGES
  expect_fields("data", "ImageFolder", [&] { ImageFolder(empty.path(), {.size = 8}); });
#endif
}

}  // namespace
}  // namespace lockstep::testing
