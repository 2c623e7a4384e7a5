#include <torch/data.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <map>
#include <stdexcept>

#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "lockstep/uneven_inputs.h"
#include "tests/comm/failures.h"
#include "tests/groups.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using Indices = std::vector<std::size_t>;

/// Its samples are their indices. Every copy has a place of its own for scratch, as readers have.
class OwnIndices : public torch::data::datasets::BatchDataset<OwnIndices, Indices> {
 public:
  explicit OwnIndices(std::size_t size, Indices broken = {})
      : size_(size), broken_(std::move(broken)) {}
  Indices get_batch(c10::ArrayRef<std::size_t> indices) override {
    scratch_.clear();
    for (const std::size_t index : indices) {
      if (std::ranges::find(broken_, index) != broken_.end())
        throw std::out_of_range("cannot read it");
      scratch_.push_back(index);
    }
    return scratch_;
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
  Indices broken_;
  Indices scratch_;
};

DistributedSampler sampler_of(std::size_t size, Tail tail = Tail::pad) {
  return {size, ShardSpec{}, {.seed = 3, .tail = tail}};
}

/// The batches that a sampler's order is cut into.
std::vector<Indices> expected_batches(std::size_t size, std::uint64_t epoch, std::size_t batch_size,
                                      bool drop_last = false) {
  const Indices order = epoch_order(size, 3, epoch);
  std::vector<Indices> batches;
  for (std::size_t at = 0; at < size; at += batch_size) {
    if (drop_last && size - at < batch_size) break;
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(at);
    batches.emplace_back(first,
                         first + static_cast<std::ptrdiff_t>(std::min(batch_size, size - at)));
  }
  return batches;
}

std::vector<Indices> all_of(auto& loader) {
  std::vector<Indices> batches;
  for (const Indices& batch : loader) batches.push_back(batch);
  return batches;
}

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

class Prefetch : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, Prefetch, ::testing::Values(0, 1, 2, 5));

TEST_P(Prefetch, GivesTheSamplersBatchesInItsOrderEveryEpoch) {
  for (const std::size_t size : {0, 1, 4, 50, 51}) {
    for (const bool drop_last : {false, true}) {
      for (const std::size_t depth : {0, 1, 30}) {
        PrefetchLoader loader(
            OwnIndices(size), sampler_of(size),
            {.batch_size = 4, .workers = GetParam(), .depth = depth, .drop_last = drop_last});
        for (const std::uint64_t epoch : {0, 1, 2})
          EXPECT_EQ(all_of(loader), expected_batches(size, epoch, 4, drop_last)) << size;
      }
    }
  }
}

/// Whether the thread that reads flushes denormals.
class Flushing : public torch::data::datasets::BatchDataset<Flushing, bool> {
 public:
  bool get_batch(c10::ArrayRef<std::size_t>) override { return flushes_denormals(); }
  std::optional<std::size_t> size() const override { return 8; }
};

TEST_P(Prefetch, ReadsWithTheProgramsTreatmentOfDenormals) {
  if (!detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  const detail::DenormalsGuard guard(false);
  PrefetchLoader loader(Flushing(), sampler_of(8), {.batch_size = 2, .workers = GetParam()});
  for (const bool flush : {false, true, false}) {
    flush_denormals(flush);  // after the workers were created
    for (const bool batch : loader) EXPECT_EQ(batch, flush);
  }
}

TEST_P(Prefetch, AForkedChildMayDestroyTheLoader) {
  std::optional<PrefetchLoader<OwnIndices, DistributedSampler>> loader;
  loader.emplace(OwnIndices(9), sampler_of(9), PrefetchOptions{.workers = GetParam()});
  EXPECT_EQ(in_child([&] { return ::alarm(5), loader.reset(), std::string(); }), "");
}

TEST_P(Prefetch, LeavingEarlyBeginsTheNextPassAnew) {
  const auto before = threads_of_this_process();
  {
    PrefetchLoader loader(OwnIndices(60), sampler_of(60), {.batch_size = 4, .workers = GetParam()});
    for (const std::uint64_t epoch : {0, 1, 2}) {
      std::size_t taken = 0;
      for (const Indices& batch : loader) {
        EXPECT_EQ(batch, expected_batches(60, epoch, 4)[taken]);
        if (++taken == epoch + 1) break;
      }
    }
    EXPECT_EQ(all_of(loader), expected_batches(60, 3, 4));
    EXPECT_EQ(*loader.begin(), expected_batches(60, 4, 4)[0]);
  }
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST_P(Prefetch, TheSamplersStateIsThatOfTheProgram) {
  for (const bool drop_last : {false, true}) {
    for (const std::size_t stop : {1, 2, 5}) {
      DistributedSampler sampler = sampler_of(23);
      PrefetchLoader loader(OwnIndices(23), sampler,
                            {.batch_size = 4, .workers = GetParam(), .drop_last = drop_last});
      std::size_t taken = 0;
      std::map<std::string, at::Tensor> state;
      for ([[maybe_unused]] const Indices& batch : loader) {
        state = sampler.state();
        if (++taken == stop) break;
      }
      DistributedSampler resumed = sampler_of(23);
      resumed.load_state(state);
      PrefetchLoader rest(OwnIndices(23), resumed,
                          {.batch_size = 4, .workers = GetParam(), .drop_last = drop_last});
      // After the last whole batch, the resumed loader starts the next epoch.
      const bool done = drop_last && stop == 5;
      auto expected = expected_batches(23, done ? 1 : 0, 4, drop_last);
      if (!done) expected.erase(expected.begin(), expected.begin() + static_cast<int>(stop));
      EXPECT_EQ(all_of(rest), expected) << stop;
      EXPECT_EQ(all_of(rest), expected_batches(23, done ? 2 : 1, 4, drop_last));
    }
  }
  DistributedSampler small = sampler_of(3);
  PrefetchLoader loader(OwnIndices(3), small,
                        {.batch_size = 4, .workers = GetParam(), .drop_last = true});
  EXPECT_TRUE(all_of(loader).empty());
  EXPECT_EQ(small.state().begin()->second[0].item<int>(), 1) << "a pass without a whole batch";
}

/// Makes no batch of several samples.
class Single : public OwnIndices {
 public:
  using OwnIndices::OwnIndices;
  Indices get_batch(c10::ArrayRef<std::size_t> indices) override {
    TORCH_CHECK(indices.size() < 2, "cannot stack them");
    return OwnIndices::get_batch(indices);
  }
};

TEST_P(Prefetch, AnErrorNamesTheIndexInItsTurnOrTheBatch) {
  const auto batches = expected_batches(40, 0, 4);
  const std::size_t broken = batches[5][2];
  DistributedSampler sampler = sampler_of(40);
  PrefetchLoader loader(OwnIndices(40, {broken, batches[8][0]}), sampler,
                        {.batch_size = 4, .workers = GetParam()});
  for (int pass = 0; pass < 2; ++pass) {
    sampler.set_epoch(0);
    std::size_t taken = 0;
    try {
      for (const Indices& batch : loader) EXPECT_EQ(batch, batches[taken++]);
      FAIL() << "no error";
    } catch (const DataError& error) {
      EXPECT_EQ(error.what(), "batch 5, index " + std::to_string(broken) + ": cannot read it");
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
    EXPECT_EQ(taken, 5u);
  }
  PrefetchLoader unstacked(Single(4), sampler_of(4), {.batch_size = 2, .workers = GetParam()});
  EXPECT_EQ(message_of<DataError>([&] { unstacked.begin(); }),
            "batch 0, of 2 samples: cannot stack them");
}

TEST_P(Prefetch, RanksEndInStepWithTrueSamplerStates) {
  run_groups(3, [&](const Group& group) {
    const auto size = static_cast<std::size_t>(12 + 4 * group.rank());
    DistributedSampler sampler = sampler_of(size);
    PrefetchLoader loader(OwnIndices(size), sampler, {.batch_size = 4, .workers = GetParam()});
    for (const std::uint64_t epoch : {0, 1}) {
      std::size_t taken = 0;
      for (const Indices& batch : join_uneven(loader, group)) {
        EXPECT_EQ(batch, expected_batches(size, epoch, 4)[taken]);
        ++taken;
        const bool ended = 4 * taken == size;
        const auto position = torch::tensor({static_cast<std::int64_t>(ended ? epoch + 1 : epoch),
                                             static_cast<std::int64_t>(ended ? 0 : 4 * taken)});
        EXPECT_TRUE(sampler.state().at("position").equal(position));
      }
      EXPECT_EQ(taken, 3u);
    }
    group.barrier().wait();
  });
}

/// Counts how far reading is ahead, and lets the test wait for it.
class Counted : public torch::data::datasets::BatchDataset<Counted, Indices> {
 public:
  explicit Counted(std::atomic<std::size_t>* batches) : batches_(batches) {}
  Indices get_batch(c10::ArrayRef<std::size_t> indices) override {
    ++*batches_;
    batches_->notify_all();
    return indices.vec();
  }
  std::optional<std::size_t> size() const override { return 100; }

 private:
  std::atomic<std::size_t>* batches_;
};

TEST(PrefetchDepth, SoManyBatchesAreReadAheadAndNoMore) {
  std::atomic<std::size_t> batches = 0;
  PrefetchLoader loader(Counted(&batches), sampler_of(100),
                        {.batch_size = 1, .workers = 2, .depth = 3});
  std::size_t taken = 0;
  for (auto batch = loader.begin(); batch != loader.end(); ++batch) {
    ++taken;
    const std::size_t expected = std::min<std::size_t>(100, taken + 3);
    for (std::size_t read = 0; (read = batches) < expected;) batches.wait(read);
    EXPECT_EQ(batches.load(), expected);
  }
  EXPECT_EQ(taken, 100u);
}

TEST(PrefetchOptions, OtherSamplersWorkAndLargerOnesAndNoBatchSizeAreRefused) {
  PrefetchLoader loader(OwnIndices(10), EvaluationSampler(10, ShardSpec{.rank = 1, .ranks = 2}),
                        {.batch_size = 3, .workers = 2});
  EXPECT_EQ(all_of(loader), (std::vector<Indices>{{5, 6, 7}, {8, 9}}));
  PrefetchLoader sequential(OwnIndices(3), torch::data::samplers::SequentialSampler(3),
                            {.batch_size = 2});
  EXPECT_EQ(all_of(sequential), (std::vector<Indices>{{0, 1}, {2}}));
  EXPECT_THROW(PrefetchLoader(OwnIndices(3), sampler_of(3), {.batch_size = 0}), InvalidArgument);
  const auto refused = [](const auto& sampler) {
    return refusal([&] { PrefetchLoader(OwnIndices(10), sampler, {.batch_size = 4}); });
  };
  EXPECT_EQ(refused(sampler_of(3)), "") << "a part of the dataset";
  const std::string of_eleven =
      "PrefetchLoader: got a sampler of 11 samples, expected at most 10, the dataset's size: "
      "construct the sampler with size().value() of the dataset";
  EXPECT_EQ(refused(sampler_of(11)), of_eleven);
  EXPECT_EQ(refused(EvaluationSampler(11, ShardSpec{})), of_eleven);
}

}  // namespace
}  // namespace lockstep::testing
