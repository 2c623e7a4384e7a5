#include "lockstep/batches.h"

#include <torch/data/dataloader.h>
#include <torch/types.h>

#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "lockstep/datasets.h"
#include "lockstep/partition.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
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

template <class Number>
std::vector<Number> up_to(Number end) {
  std::vector<Number> all(static_cast<std::size_t>(end));
  std::iota(all.begin(), all.end(), Number{0});
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

TEST_P(Batches, AFailureNamesTheBatchAndEndsThePassAndOptionsThatMakeBatchesAreRefused) {
  auto all = batches<Numbers>(Counter(5, 2), {.workers = GetParam()});
  std::vector<int> seen;
  EXPECT_THAT(message_of<DataError>([&] {
                for (const auto& batch : all) seen.push_back(batch.data.item<int>());
              }),
              HasSubstr("batch 2, index 2: cannot read it"));
  EXPECT_EQ(seen, up_to(2));
  for (const PrefetchOptions& making : std::vector<PrefetchOptions>{
           {.workers = 2}, {.batch_size = 8, .workers = 1}, {.drop_last = true}})
    EXPECT_THROW(batches<Numbers>(Counter(1), making), InvalidArgument);
}

at::Tensor images(std::int64_t count, std::int64_t height = 6, std::int64_t width = 5) {
  return torch::arange(count * 2 * height * width, at::kFloat).view({count, 2, height, width});
}

/// The image padded by mirroring: each edge's rows, turned around, beside it.
at::Tensor padded(const at::Tensor& image, std::int64_t pad) {
  at::Tensor result = image;
  for (const int dim : {1, 2}) {
    const std::int64_t size = image.size(dim);
    result = torch::cat({result.slice(dim, 0, pad).flip(dim), result,
                         result.slice(dim, size - pad, size).flip(dim)},
                        dim);
  }
  return result;
}

struct Crop {
  std::int64_t down, right;
  bool flipped;
  auto operator<=>(const Crop&) const = default;
};

/// Which of all possible crops of the image this is.
std::optional<Crop> crop_of(const at::Tensor& image, const at::Tensor& got, std::int64_t pad) {
  const at::Tensor whole = padded(image, pad);
  for (std::int64_t down = 0; down <= 2 * pad; ++down)
    for (std::int64_t right = 0; right <= 2 * pad; ++right)
      for (const bool flipped : {false, true}) {
        const at::Tensor crop =
            whole.slice(1, down, down + image.size(1)).slice(2, right, right + image.size(2));
        if (torch::equal(flipped ? crop.flip(2) : crop, got)) return Crop{down, right, flipped};
      }
  return std::nullopt;
}

TEST(Augment, CropsAndFlipsThePaddedImage) {
  const at::Tensor source = images(400);
  const at::Tensor got = augment(source, up_to<std::size_t>(400), 0, {.seed = 1, .pad = 2});
  std::set<Crop> seen;
  int flipped = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    const auto crop = crop_of(source[i], got[i], 2);
    ASSERT_TRUE(crop) << "image " << i << " is no crop";
    seen.insert(*crop);
    flipped += crop->flipped ? 1 : 0;
  }
  EXPECT_EQ(seen.size(), 5u * 5u * 2u) << "400 images show every crop there is";
  EXPECT_NEAR(flipped, 200, 60);
}

TEST(Augment, DependsOnSeedEpochAndIndexAlone) {
  const at::Tensor source = images(50);
  const auto indices = up_to<std::size_t>(50);
  const AugmentOptions options{.seed = 7};
  const at::Tensor whole = augment(source, indices, 3, options);
  for (std::int64_t i : {0, 17, 49}) {
    const std::vector<std::size_t> one{static_cast<std::size_t>(i)};
    EXPECT_TRUE(torch::equal(augment(source.slice(0, i, i + 1), one, 3, options)[0], whole[i]));
  }
  EXPECT_FALSE(torch::equal(augment(source, indices, 4, options), whole));
  EXPECT_FALSE(torch::equal(augment(source, indices, 3, {.seed = 8}), whole));
}

TEST(Augment, ChangesNothingWithoutPaddingAndFlippingAndRefusesWhatIsNoImage) {
  const at::Tensor source = images(9);
  EXPECT_TRUE(
      torch::equal(augment(source, up_to<std::size_t>(9), 0, {.pad = 0, .flip = false}), source));
  const at::Tensor cropped = augment(source, up_to<std::size_t>(9), 0, {.pad = 1, .flip = false});
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(crop_of(source[i], cropped[i], 1)->flipped);
  EXPECT_EQ(augment(images(0), {}, 0, {}).numel(), 0);
  const std::vector<std::size_t> one{0};
  for (const auto& none : {torch::zeros({1, 5, 5}), torch::zeros({1, 1, 5, 5}, at::kByte),
                           torch::zeros({1, 1, 5, 5}, at::kMeta), torch::zeros({2, 1, 5, 5})})
    EXPECT_THROW(augment(none, one, 0, {}), InvalidArgument);
  EXPECT_THROW(augment(torch::zeros({1, 1, 5, 3}), one, 0, {.pad = 4}), InvalidArgument);
  EXPECT_THROW(augment(torch::zeros({1, 1, 5, 5}), one, 0, {.pad = -1}), InvalidArgument);
}

/// Their targets are their indices.
class Images : public torch::data::datasets::BatchDataset<Images, torch::data::Example<>> {
 public:
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> wanted) override {
    const auto targets = torch::tensor(std::vector<std::int64_t>(wanted.begin(), wanted.end()));
    return {images(40).index_select(0, targets), targets};
  }
  std::optional<std::size_t> size() const override { return 40; }
};

/// The batches of two epochs.
at::Tensor two_epochs(Augmented<Images>& data, auto& loader) {
  std::vector<at::Tensor> all;
  for (std::uint64_t epoch : {0, 1}) {
    data.set_epoch(epoch);
    for (const auto& batch : loader) {
      const auto* const first = batch.target.template const_data_ptr<std::int64_t>();
      const std::vector<std::size_t> indices(first, first + batch.target.numel());
      const at::Tensor plain = Images().get_batch(indices).data;
      EXPECT_TRUE(torch::equal(batch.data, augment(plain, indices, epoch, {.seed = 2})));
      all.push_back(batch.data);
    }
  }
  return torch::cat(all);
}

TEST(Augmented, IsTheSameWithEveryLoaderAndNumberOfWorkers) {
  at::Tensor expected;
  for (const std::size_t workers : {0, 1, 3}) {
    Augmented<Images> data(Images(), {.seed = 2});
    const auto sampler = [] { return DistributedSampler(40, ShardSpec{}, {.seed = 1}); };
    auto loader = torch::data::make_data_loader(data, sampler(),
                                                torch::data::DataLoaderOptions(7).workers(workers));
    PrefetchLoader prefetch(data, sampler(), {.batch_size = 7, .workers = workers});
    for (const at::Tensor& got : {two_epochs(data, *loader), two_epochs(data, prefetch)}) {
      if (!expected.defined()) expected = got;
      EXPECT_EQ(got.size(0), 80);
      EXPECT_TRUE(torch::equal(got, expected));
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
