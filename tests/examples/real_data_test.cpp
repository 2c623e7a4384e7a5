#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/examples/program_run.h"

// Digits that people wrote, and photographs: others of these tests make their data.

namespace lockstep::testing {
namespace {

class RealData : public ProgramRun {};

TEST_F(RealData, MnistCnnLearnsTheSampleOfMnist) {
  const Result result = two_ranks(
      "mnist_cnn --epochs 2 --quiet --no-efficiency --metrics metrics.jsonl --checkpoint '' "
      "--data '" LOCKSTEP_SOURCE_DIR "/examples/data/mnist'");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto losses = values("train_loss");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_LT(losses[1], losses[0] / 2);
  EXPECT_GT(values("test_accuracy")[1], 0.9);
}

TEST_F(RealData, ResNet9LearnsCifar10) {
  const char* data = std::getenv("LOCKSTEP_TEST_CIFAR10");
  if (data == nullptr)
    GTEST_SKIP() << "LOCKSTEP_TEST_CIFAR10 names no folder of CIFAR-10's binary files";
  const Result result =
      two_ranks("resnet9_cifar10 --epochs 2 --quiet --metrics metrics.jsonl --data '" +
                std::string(data) + "'");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto losses = values("train_loss");
  ASSERT_GE(losses.size(), 2u);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_GT(values("test_accuracy").at(0), 0.3) << "ten classes";
}

}  // namespace
}  // namespace lockstep::testing
