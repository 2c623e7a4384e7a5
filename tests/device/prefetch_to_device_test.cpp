#include <map>

#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "tests/device/on_devices.h"

// A PrefetchLoader that copies batches to a device.

namespace lockstep::testing::prefetch_to_device {
namespace {

const at::Device device = device_of(on_gpus() ? 0 : 1);
constexpr std::size_t size = 41;

/// Sample i is [i, i, …]; its target is i. Each copy of the dataset returns the same memory again.
struct DeviceRows : torch::data::datasets::BatchDataset<DeviceRows, torch::data::Example<>> {
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override {
    const std::vector<std::int64_t> rows(indices.begin(), indices.end());
    const auto target = at::tensor(rows, at::kLong);
    return {target.to(at::kFloat).unsqueeze(1).expand({-1, 300}), target};
  }
  std::optional<std::size_t> size() const override { return prefetch_to_device::size; }
};

DistributedSampler sampler() { return {size, ShardSpec{}, {.seed = 3}}; }

struct PrefetchCase {
  std::size_t workers;
  bool pin_memory;
};

class PrefetchToDevice : public ::testing::TestWithParam<PrefetchCase> {
 protected:
  void SetUp() override {
    prepare_devices();
    delay_streams(100);
    on_device_.emplace(device);
  }
  void TearDown() override {
    if (!on_gpus()) simulation::synchronize_all();
    EXPECT_EQ(take_reports(), std::vector<std::string>{});
    delay_streams(0);
  }
  PrefetchOptions options() const {
    return {.batch_size = 4,
            .workers = GetParam().workers,
            .device = device,
            .pin_memory = GetParam().pin_memory};
  }
  static PrefetchOptions on_cpu() { return {.batch_size = 4}; }

 private:
  std::optional<c10::DeviceGuard> on_device_;
};

TEST_P(PrefetchToDevice, BatchesAreTheSameAsOnTheCpu) {
  PrefetchLoader loader(DeviceRows(), sampler(), options());
  PrefetchLoader expected(DeviceRows(), sampler(), on_cpu());
  for (int epoch = 0; epoch < 3; ++epoch) {
    auto other = expected.begin();
    std::vector<std::pair<at::Tensor, at::Tensor>> results;
    for (auto& batch : loader) {
      EXPECT_EQ(batch.data.device(), device);
      EXPECT_EQ(batch.target.device(), device);
      // Work that still uses the batch when the loader frees it.
      results.emplace_back(batch.data.mul(2).sum(1) + batch.target,
                           other->data.mul(2).sum(1) + other->target);
      ++other;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(results.size(), 11U);
    for (const auto& [got, right] : results) EXPECT_TRUE(got.cpu().equal(right));
  }
}

TEST_P(PrefetchToDevice, ThePassMayBeLeftEarly) {
  PrefetchLoader loader(DeviceRows(), sampler(), options());
  for (int pass = 0; pass < 6; ++pass) {
    at::Tensor sum;
    int count = 0;
    for (auto& batch : loader) {
      sum = sum.defined() ? sum + batch.data.sum() : batch.data.sum();
      // The memory of a batch that is copied ahead may be used again.
      if (++count > pass) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto other = at::ones({4, 300}, device).add_(sum);
    EXPECT_EQ(other[0][0].item<float>(), sum.item<float>() + 1);
  }
}

TEST_P(PrefetchToDevice, EveryStreamMayUseABatch) {
  PrefetchLoader loader(DeviceRows(), sampler(), options());
  std::vector<at::Tensor> sums;
  for (auto batch = loader.begin(); batch != loader.end();) {
    const c10::Stream stream = new_stream(device);
    const c10::StreamGuard on(stream);
    ++batch;
    if (batch == loader.end()) break;
    sums.push_back((batch->data.sum() / 300 - batch->target.sum()).abs());
    stream.synchronize();
  }
  for (const auto& sum : sums) EXPECT_EQ(sum.item<float>(), 0);
}

TEST_P(PrefetchToDevice, TheIteratingThreadDoesNotWaitForTheDevice) {
  if (!GetParam().pin_memory) GTEST_SKIP() << "copies of other memory wait";
  if (on_gpus()) GTEST_SKIP() << "counts the waits of the simulated device";
  PrefetchLoader loader(DeviceRows(), sampler(), options());
  const auto before = simulation::counts(device.index());
  int count = 0;
  for (auto& batch : loader) count += static_cast<int>(batch.data.size(0));
  const auto used = simulation::counts(device.index()) - before;
  EXPECT_EQ(count, 41);
  EXPECT_EQ(used.host_synchronisations, 0U);
  EXPECT_EQ(used.copies, 22U);
}

INSTANTIATE_TEST_SUITE_P(Workers, PrefetchToDevice,
                         ::testing::Values(PrefetchCase{0, true}, PrefetchCase{1, true},
                                           PrefetchCase{3, true}, PrefetchCase{2, false}),
                         [](const auto& one) {
                           return std::to_string(one.param.workers) +
                                  (one.param.pin_memory ? "Pinned" : "Pageable");
                         });

/// Eight samples, in batches that batch_of() makes of their number.
template <class Batch, Batch (*batch_of)(std::int64_t)>
struct Batches : torch::data::datasets::BatchDataset<Batches<Batch, batch_of>, Batch> {
  Batch get_batch(c10::ArrayRef<std::size_t> indices) override {
    return batch_of(static_cast<std::int64_t>(indices.size()));
  }
  std::optional<std::size_t> size() const override { return 8; }
};

using Maps = std::map<std::string, std::vector<at::Tensor>>;
Maps map_of(std::int64_t count) { return {{"a", {at::ones({count}), at::Tensor()}}}; }

struct Unknown {
  std::shared_ptr<int> value;
};
Unknown unknown_of(std::int64_t) { return {}; }

struct Own {
  std::shared_ptr<at::Tensor> value;
};
void change_tensors(Own& batch, const auto& change) { change(*batch.value); }
Own own_of(std::int64_t count) { return {std::make_shared<at::Tensor>(at::ones({count}))}; }

using MapsOfTensors = Batches<Maps, map_of>;
using UnknownBatches = Batches<Unknown, unknown_of>;
using OwnBatches = Batches<Own, own_of>;

// A loader that ends makes the current stream wait for a batch that is copied ahead.
TEST(PrefetchToDeviceOptions, TheDeviceMayFailBeforeALoaderEnds) {
  if (on_gpus()) GTEST_SKIP() << "lets the simulated device fail";
  prepare_devices();
  using Loader = PrefetchLoader<DeviceRows, DistributedSampler>;
  for (int pass = 0; pass < 5; ++pass) {
    std::optional<Loader> loader(std::in_place, DeviceRows(), sampler(),
                                 PrefetchOptions{.batch_size = 4, .device = device});
    auto batch = loader->begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++batch;  // copies the next batch if it is read
    simulation::fail_waits(true);
    loader.reset();
    simulation::fail_waits(false);
  }
  simulation::synchronize_all();
  take_reports();  // memory was freed before its copy was complete
}

TEST(PrefetchToDeviceOptions, BatchesOfManyTypesAreCopied) {
  prepare_devices();
  const PrefetchOptions options{.batch_size = 4, .device = device};
  const DistributedSampler of_8(8, ShardSpec{});
  PrefetchLoader maps(MapsOfTensors(), of_8, options);
  for (auto& batch : maps) {
    EXPECT_EQ(batch.at("a")[0].device(), device);
    EXPECT_EQ(batch.at("a")[0].sum().item<float>(), 4);
    EXPECT_FALSE(batch.at("a")[1].defined());
  }
  PrefetchLoader own(OwnBatches(), of_8, options);
  for (auto& batch : own) EXPECT_EQ(batch.value->device(), device);
  EXPECT_THROW(PrefetchLoader(UnknownBatches(), of_8, options), InvalidArgument);
  PrefetchLoader unknown(UnknownBatches(), of_8, {.batch_size = 4, .device = at::kCPU});
  EXPECT_THROW(PrefetchLoader(MapsOfTensors(), of_8,
                              {.batch_size = 4, .device = at::Device(device.type(), 100)}),
               InvalidArgument);
  EXPECT_THROW(PrefetchLoader(MapsOfTensors(), of_8, {.batch_size = 4, .device = at::kXLA}),
               InvalidArgument);
  if (!on_gpus()) simulation::synchronize_all();
  EXPECT_EQ(take_reports(), std::vector<std::string>{});
}

}  // namespace
}  // namespace lockstep::testing::prefetch_to_device
