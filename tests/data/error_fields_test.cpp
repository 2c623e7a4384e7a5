#include "tests/error_fields.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lockstep/autocast.h"
#include "lockstep/datasets.h"
#include "lockstep/learning_rate.h"
#include "lockstep/metrics.h"
#include "lockstep/partition.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "lockstep/strategy.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

std::string fields(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fields_of(error);
  }
  return "no error";
}

std::string invalid(const std::string& operation) {
  return "invalid_argument by rank -1 in " + operation + ", cause invalid_argument";
}

std::string bad_data(const std::string& operation) {
  return "data by rank -1 in " + operation + ", cause data";
}

TEST(DataErrorFields, OfArguments) {
  const ShardSpec bad{.rank = 2, .ranks = 2};
  EXPECT_EQ(fields([&] { DistributedSampler(5, bad); }), invalid("DistributedSampler"));
  EXPECT_EQ(fields([&] { EvaluationSampler(5, bad); }), invalid("EvaluationSampler"));
  EXPECT_EQ(fields([&] { partition_contiguous(5, bad); }), invalid("partition_contiguous"));
  EXPECT_EQ(fields([] { augment(at::zeros({3}), {}, 0, {}); }), invalid("augment"));
  EXPECT_EQ(fields([] { Autocast autocast(at::kLong); }), invalid("Autocast"));
  EXPECT_EQ(fields([] { scaled_rate(0.1, 0, 1); }), invalid("scaled_rate"));
  EXPECT_EQ(fields([] { Tally tally(0); }), invalid("Tally"));
  EXPECT_EQ(fields([] { Mean().add(1, -1); }), invalid("Mean"));
  EXPECT_EQ(fields([] { parse_strategy("nosuch"); }), invalid("strategy"));
  EXPECT_EQ(fields([] { Cifar10(at::zeros({1}), at::zeros({1})); }), invalid("Cifar10"));
  EXPECT_EQ(fields([] { detail::checked({.batch_size = 0}, true); }), invalid("PrefetchLoader"));
}

TEST(DataErrorFields, OfFiles) {
  const TemporaryFolder empty;
  EXPECT_EQ(fields([&] { Mnist(empty.path()); }), bad_data("Mnist"));
  EXPECT_EQ(fields([&] { Cifar10(empty.path()); }), bad_data("Cifar10"));
#ifdef LOCKSTEP_IMAGES
  EXPECT_EQ(fields([&] { ImageFolder(empty.path(), {.size = 8}); }), bad_data("ImageFolder"));
#endif
}

}  // namespace
}  // namespace lockstep::testing
