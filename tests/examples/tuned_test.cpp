#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/system/topology.h"
#include "tests/examples/program_run.h"

// `lockstep tune` on an example, which knows nothing of it.

namespace lockstep::testing {
namespace {

class Tuned : public ProgramRun {};

TEST_F(Tuned, ExampleIsMeasuredWithOtherBucketsAndSharedMemory) {
  if (Topology::read().cores.size() < 2) GTEST_SKIP() << "one core: nothing to divide";
  const auto result = run(
      quoted_launcher +
      " tune --json --global-batch 32 --ranks 2 --buckets 1 --rounds 1 --seconds 0.2 --warm-up 0 " +
      quoted_bin + "mnist_cnn --no-efficiency --epochs 1000 --batch-size {batch}");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["rate_unit"], "samples/s");
  // Buckets are measured with the best binding, and once more together if both changes gain.
  bool shared = false;
  bool small_buckets = false;
  for (const auto& one : json["candidates"]) {
    if (one["bucket_mib"] == 1) small_buckets = true;
    if (one["share_memory"]) shared = true;
    EXPECT_GT(one["rate"], 0) << one;
  }
  EXPECT_TRUE(shared) << result.out;
  EXPECT_TRUE(small_buckets) << result.out;
}

}  // namespace
}  // namespace lockstep::testing
