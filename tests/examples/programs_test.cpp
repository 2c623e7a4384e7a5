#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/examples/program_run.h"

// The programs of other systems' tutorials, each run as a user does.

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::count;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Result;

class Programs : public testing::ProgramRun {
 protected:
  /// A value of all lines of metrics.jsonl that have it.
  std::vector<double> values(const char* name) const {
    std::vector<double> found;
    for (const auto& line : metrics())
      if (line.contains(name)) found.push_back(line[name]);
    return found;
  }
  void expect_one_complaint(const std::string& command, int code, const std::string& said) const {
    for (const bool several : {false, true}) {
      const Result result = several ? two_ranks(command) : alone(command);
      EXPECT_EQ(result.code, code) << command << result.out << result.err;
      EXPECT_THAT(result.err, HasSubstr(said)) << command;
      // The launcher repeats it once more, indented, as the last words of the rank that failed.
      EXPECT_LE(count("\n" + result.err, "\n" + said), 1) << result.err;
    }
  }
};

const std::string resnet9 = "resnet9_cifar10 --batch-size 32 --images 320 --metrics metrics.jsonl ";

TEST_F(Programs, ResNet9TrainsOnAnyNumberOfRanks) {
  for (const bool several : {false, true}) {
    const Result result =
        several ? two_ranks(resnet9 + "--epochs 4") : alone(resnet9 + "--epochs 4 --augment");
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char* part : {"coloured shapes", "epoch 4", "training took", "test loss"})
      EXPECT_EQ(count(result.out, part), 1) << part << result.out;
    const auto losses = values("train_loss");
    ASSERT_EQ(losses.size(), 4u);
    EXPECT_LT(losses.back(), losses.front());
    EXPECT_EQ(values("test_accuracy").size(), 1u);
  }
}

TEST_F(Programs, ResNetsTrainWithBatchNormsOverAllRanks) {
  const Result small = two_ranks(resnet9 + "--epochs 4 --sync-batchnorm");
  ASSERT_EQ(small.code, 0) << small.err;
  EXPECT_EQ(count(small.out, "8 batch norms use the images of all ranks"), 1) << small.out;
  EXPECT_LT(values("train_loss").back(), values("train_loss").front());

  const Result large = two_ranks(
      "resnet50 --samples 8 --batch-size 4 --image-size 32 --lr 0.002 --metrics metrics.jsonl "
      "--epochs 2 --sync-batchnorm");
  ASSERT_EQ(large.code, 0) << large.err;
  EXPECT_EQ(count(large.out, "53 batch norms use the images of all ranks"), 1) << large.out;
  EXPECT_EQ(values("train_loss").size(), 2u);
}

TEST_F(Programs, ResNet9ReadsCifar10) {
  const std::filesystem::path data = folder / "cifar";
  std::filesystem::create_directory(data);
  for (const auto& [name, images] :
       {std::pair("data_batch_1.bin", 64), std::pair("test_batch.bin", 11)}) {
    std::ofstream out(data / name, std::ios::binary);
    for (int i = 0; i < images; ++i)
      out << static_cast<char>(i % 10) << std::string(3072, static_cast<char>(25 * (i % 10)));
  }
  const Result result = two_ranks(resnet9 + "--epochs 1 --data cifar");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("data cifar: 64 images to train, 11 to test"));

  std::filesystem::resize_file(data / "test_batch.bin", 5000);
  expect_one_complaint(resnet9 + "--data cifar", 1,
                       "resnet9_cifar10: cifar/test_batch.bin: offset 3073: expected an image");
  expect_one_complaint(resnet9 + "--data nowhere", 1,
                       "resnet9_cifar10: nowhere/data_batch_1.bin: cannot open: No such file");
}

TEST_F(Programs, GradientsOfPartsAreThatOfTheWhole) {
  const std::string program = "gradient_proof --metrics metrics.jsonl";
  for (const int ranks : {1, 2, 7}) {
    const Result result =
        ranks == 2 ? two_ranks(program) : alone(program + " --threads " + std::to_string(ranks));
    ASSERT_EQ(result.code, 0) << result.err;
    const auto lines = metrics();
    ASSERT_EQ(lines.size(), ranks == 1 ? 2u : 3u);
    for (const auto& line : lines) {
      EXPECT_EQ(line["ranks"], ranks);
      const bool exact = line["unequal"] == 0 || line["weighted"] == 1;
      const double apart = line["largest_difference"];
      EXPECT_TRUE(exact ? apart < 1e-14 : apart > 1e-5) << result.out;
    }
  }
  expect_one_complaint(program + " --data nowhere", 1, "gradient_proof: found neither nowhere/");
  const Result few = two_ranks(program + " --images 2");
  EXPECT_EQ(few.code, 1);
  EXPECT_THAT(few.err, HasSubstr("gradient_proof: --images 2: expected at least 3 for 2 ranks"));
}

TEST_F(Programs, LargeBatchesInParts) {
  const std::string program =
      "large_batch --epochs 2 --seed 3 --images 2048 --warm-up 4 --metrics metrics.jsonl";
  // The same steps, whatever they are made of.
  std::vector<double> whole;
  for (const char* parts : {"--batch-size 128 --accumulate 1", "--batch-size 32 --accumulate 4"}) {
    const Result result = two_ranks(program + " " + parts);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count(result.out, "256 images a step"), 1) << result.out;
    const auto losses = values("train_loss");
    ASSERT_EQ(losses.size(), 2u);
    EXPECT_LT(losses[1], losses[0]);
    if (whole.empty()) whole = losses;
    EXPECT_NEAR(losses[1], whole[1], 1e-3 * whole[1]);
  }
  const Result lower = alone(program + " --autocast");
  ASSERT_EQ(lower.code, 0) << lower.err;
  EXPECT_LT(values("train_loss")[1], values("train_loss")[0]);
  EXPECT_NE(values("train_loss")[1], whole[1]);
  expect_one_complaint(program + " --accumulate 1000", 1, "large_batch: --accumulate 1000: ");
}

TEST_F(Programs, AStrategyOfOnesOwnLearns) {
  const Result result = run(quoted_launcher + " run -n 3 " + quoted_bin + "custom_strategy");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto loss_after = [&](const std::string& step) {
    const std::string what = "step " + step + ": loss ";
    const auto at = result.out.find(what);
    EXPECT_NE(at, std::string::npos) << result.out;
    return std::stod(result.out.substr(at + what.size()));
  };
  EXPECT_LT(loss_after("500"), 0.05);
  EXPECT_GT(loss_after("100"), 2 * loss_after("500"));
  // A byte for each float.
  EXPECT_THAT(result.out, HasSubstr("compressed 4.0 times"));
}

TEST_F(Programs, TrainersSaveAndGoOn) {
  const std::string flags = " --metrics metrics.jsonl --batch_size 500";
  for (const std::string program : {"single_trainer", "ddp_trainer"}) {
    std::filesystem::remove(folder / "snapshot.safetensors");
    const auto start = [&](const std::string& arguments) {
      return program == "single_trainer" ? alone(program + arguments)
                                         : two_ranks(program + arguments);
    };
    const Result first = start(" 2 1" + flags);
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_EQ(count(first.out, "training snapshot saved at snapshot.safetensors"), 2);
    const auto losses = values("train_loss");
    ASSERT_EQ(losses.size(), 2u);
    EXPECT_LT(losses[1], losses[0]);

    const Result second = start(" 3 1" + flags);
    ASSERT_EQ(second.code, 0) << second.err;
    EXPECT_EQ(count(second.out, "resuming training from snapshot at epoch 2"), 1);
    ASSERT_EQ(values("train_loss").size(), 1u);
    EXPECT_LT(values("train_loss")[0], losses[1]);

    std::filesystem::resize_file(folder / "snapshot.safetensors", 1000);
    const Result spoilt = start(" 4 1" + flags);
    EXPECT_EQ(spoilt.code, 1);
    EXPECT_EQ(count("\n" + spoilt.err, "\n" + program + ": snapshot.safetensors: "), 1)
        << spoilt.err;
  }
}

TEST_F(Programs, ResNet50TrainsWithBothWaysToSplitData) {
  const std::string program =
      "resnet50 --samples 8 --batch-size 4 --image-size 32 --lr 0.002 --metrics metrics.jsonl ";
  for (const std::string flags :
       {"--split sampler --parameters same_seed", "--split rank0 --parameters broadcast"}) {
    const Result result = two_ranks(program + "--epochs 4 " + flags);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("[epoch 3, batch 0] loss "), HasSubstr(", acc5 "),
                                  HasSubstr("4 steps took ")));
    const auto losses = values("train_loss");
    ASSERT_EQ(losses.size(), 4u);
    EXPECT_LT(losses[3], losses[0]);
    EXPECT_EQ(json_lines("log/laps.jsonl").size(), 4u) << "its log is in log/ by itself";
    EXPECT_EQ(json_lines("log/metrics.jsonl").size(), metrics().size());
  }
  expect_one_complaint("resnet50 --samples 8", 1, "resnet50: --samples 8: expected a batch");
}

TEST_F(Programs, HelpIsCompleteAndWrongFlagsAreNamed) {
  const std::array<std::pair<std::string, std::vector<const char*>>, 5> programs{{
      {"resnet9_cifar10",
       {"--epochs", "--batch-size", "--lr", "--weight-decay", "--seed", "--data", "--augment",
        "--workers", "--strategy", "--sync-batchnorm", "--checkpoint-dir", "--metrics", "--quiet",
        "--log-dir", "--trace"}},
      {"gradient_proof", {"--images", "--seed", "--data", "--strategy", "--metrics", "--threads"}},
      {"ddp_trainer",
       {"total_epochs", "save_every", "--batch_size", "--data", "--snapshot", "--strategy",
        "--log-dir", "--trace"}},
      {"single_trainer", {"total_epochs", "save_every", "--batch_size", "--data", "--snapshot"}},
      {"resnet50",
       {"--epochs", "--batch-size", "--samples", "--lr", "--workers", "--split", "--parameters",
        "--strategy", "--sync-batchnorm", "--data", "--weights", "--checkpoint-dir", "--metrics",
        "--log-dir", "--trace"}},
  }};
  for (const auto& [program, flags] : programs) {
    const Result help = alone(program + " --help");
    EXPECT_EQ(help.code, 0);
    for (const char* flag : flags) EXPECT_THAT(help.out, HasSubstr(flag)) << program;

    const Result wrong = alone(program + " --nonsense");
    EXPECT_NE(wrong.code, 0) << program;
    EXPECT_THAT(wrong.err, Not(IsEmpty())) << program;
  }
  const Result strategy = two_ranks("resnet50 --strategy nonsense");
  EXPECT_EQ(strategy.code, 2);
  EXPECT_EQ(count("\n" + strategy.err, "\n--strategy: "), 1) << strategy.err;
  const Result unwritable = two_ranks("ddp_trainer 1 1 --metrics no/such/file");
  EXPECT_EQ(unwritable.code, 1);
  EXPECT_EQ(count("\n" + unwritable.err, "\nddp_trainer: --metrics no/such/file: cannot write"), 1)
      << unwritable.err;
}

}  // namespace
}  // namespace lockstep
