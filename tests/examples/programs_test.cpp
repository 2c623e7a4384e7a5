#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/examples/program_run.h"

// The programs of other systems' tutorials, each run as a user does.

namespace lockstep::testing {
namespace {

class Programs : public ProgramRun {
 protected:
  /// That the program writes its log on request, and prints nothing.
  void expect_quiet_with_log(const std::string& program) const {
    const Result result = two_ranks(program + " --quiet --log-dir quiet --trace");
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out + result.err, IsEmpty()) << program;
    EXPECT_FALSE(json_lines("quiet/metrics.jsonl").empty()) << program;
    EXPECT_FALSE(json_lines("quiet/intervals.jsonl").empty()) << program;
    EXPECT_THAT(content(folder / "quiet/trace.json"), HasSubstr("\"all_reduce\""));
  }
};

/// The number after these words.
double number_after(const std::string& text, const std::string& words, std::size_t from = 0) {
  const auto at = text.find(words, from);
  EXPECT_NE(at, std::string::npos) << text;
  return std::stod(text.substr(at + words.size()));
}

const std::string resnet9 = "resnet9_cifar10 --batch-size 16 --images 64 --metrics metrics.jsonl ";

TEST_F(Programs, ResNet9TrainsOnOneRankAndNoBatchNormSeesOneImage) {
  const Result bfloat16 = alone(resnet9 + "--epochs 3 --augment --bf16 kahan");
  ASSERT_EQ(bfloat16.code, 0) << bfloat16.err;
  EXPECT_THAT(bfloat16.out, Not(HasSubstr("synchronised over all ranks")));
  const auto losses = values("train_loss");
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_LT(losses.back(), losses.front());
  // A last batch of one is left out, whoever's it is.
  const Result one_left = alone("resnet9_cifar10 --images 65 --batch-size 32 --epochs 1");
  ASSERT_EQ(one_left.code, 0) << one_left.err;
  EXPECT_THAT(one_left.out, HasSubstr("epoch 1  batch 2  loss "));
  expect_one_complaint(two_ranks("resnet9_cifar10 --batch-size 1"), 1,
                       "resnet9_cifar10: --batch-size 1: expected two images or more for each of ");
  expect_one_complaint(alone("resnet50 --batch-size 1 --image-size 32"), 1,
                       "resnet50: --batch-size 1: expected 2 or more of --image-size 32");
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
  expect_one_complaint(two_ranks(resnet9 + "--data cifar"), 1,
                       "resnet9_cifar10: cifar/test_batch.bin: offset 3073: expected an image");
  expect_one_complaint(alone(resnet9 + "--data nowhere"), 1,
                       "resnet9_cifar10: nowhere/data_batch_1.bin: cannot open: No such file");
}

TEST_F(Programs, GradientsOfPartsAreThatOfTheWhole) {
  const std::string program = "gradient_proof --metrics metrics.jsonl";
  for (const int ranks : {1, 2, 7}) {
    const Result result =
        ranks == 2 ? two_ranks(program) : alone(program + " --threads " + std::to_string(ranks));
    ASSERT_EQ(result.code, 0) << result.err;
    const std::string counted = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    EXPECT_THAT(result.out, HasSubstr(" digits against that of " + counted + ", "));
    const auto lines = metrics();
    ASSERT_EQ(lines.size(), ranks == 1 ? 2u : 3u);
    for (const auto& line : lines) {
      EXPECT_EQ(line["ranks"], ranks);
      const bool exact = line["unequal"] == 0 || line["weighted"] == 1;
      const double apart = line["largest_difference"];
      EXPECT_TRUE(exact ? apart < 1e-14 : apart > 1e-5) << result.out;
    }
  }
  expect_one_complaint(alone(program + " --data nowhere"), 1,
                       "gradient_proof: found neither nowhere/");
  expect_one_complaint(two_ranks(program + " --images 2"), 1,
                       "gradient_proof: --images 2: expected at least 3 for 2 ranks");
}

TEST_F(Programs, LargeBatchesInParts) {
  const std::string program =
      "large_batch --epochs 2 --seed 3 --images 1024 --warm-up 4 --metrics metrics.jsonl ";
  // The same steps, whatever they are made of.
  const Result parts = two_ranks(program + "--batch-size 32 --accumulate 4");
  ASSERT_EQ(parts.code, 0) << parts.err;
  EXPECT_EQ(count(parts.out, "256 images a step"), 1) << parts.out;
  const auto losses = values("train_loss");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_LT(losses[1], losses[0]);
  expect_quiet_with_log(program + "--batch-size 128 --accumulate 1");
  const auto whole = values("train_loss");
  EXPECT_NEAR(losses.at(1), whole.at(1), 1e-3 * whole[1]);

  const Result lower = alone(program + "--autocast");
  ASSERT_EQ(lower.code, 0) << lower.err;
  EXPECT_LT(values("train_loss")[1], values("train_loss")[0]);
  EXPECT_NE(values("train_loss")[1], whole[1]);
  expect_one_complaint(alone(program + "--accumulate 1000"), 1, "large_batch: --accumulate 1000: ");
}

TEST_F(Programs, AStrategyOfOnesOwnLearns) {
  const Result result = on_ranks(3, "custom_strategy -v");
  ASSERT_EQ(result.code, 0) << result.err;
  const double last = number_after(result.out, "step 500: loss ");
  EXPECT_LT(last, 0.05);
  EXPECT_GT(number_after(result.out, "step 100: loss "), 2 * last);
  // A byte for each float.
  EXPECT_THAT(result.out, HasSubstr("compressed 4.0 times"));
}

TEST_F(Programs, MakeTrainEndsWithCommandsThatExist) {
  const Result result =
      run("make -s -C '" LOCKSTEP_SOURCE_DIR "' next BUILD='" LOCKSTEP_BINARY_DIR "/..'");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "\n  "), 3) << result.out;
  const auto help = result.out.substr(result.out.rfind("\n  ") + 3);
  EXPECT_EQ(run(help.substr(0, help.find('\n'))).code, 0) << help;
}

TEST_F(Programs, RegressionPrintsItsMetrics) {
  const Result result = on_ranks(3, "regression");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto last = result.out.find("epoch 4: ");
  ASSERT_NE(last, std::string::npos) << result.out;
  EXPECT_LT(number_after(result.out, "loss ", last), 0.1 * number_after(result.out, "loss "));
  // The noise has a standard deviation of 0.1: its mean absolute value is 0.1 sqrt(2 / pi).
  EXPECT_NEAR(number_after(result.out, "absolute error ", last), 0.08, 0.02);
  EXPECT_GT(number_after(result.out, "R2 ", last), 0.999);
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
    EXPECT_THAT(first.out, Not(HasSubstr("waiting ms")));
    const auto losses = values("train_loss");
    ASSERT_EQ(losses.size(), 2u);
    EXPECT_LT(losses[1], losses[0]);

    const bool collectives = program == "ddp_trainer";
    const Result second = start(" 3 1" + flags + (collectives ? " -v" : ""));
    ASSERT_EQ(second.code, 0) << second.err;
    EXPECT_EQ(second.out.find("waiting ms") != std::string::npos, collectives) << second.out;
    EXPECT_EQ(count(second.out, "resuming training from snapshot at epoch 2"), 1);
    const auto all = values("train_loss");
    ASSERT_EQ(all.size(), 3u) << "a resumed run adds its lines";
    EXPECT_EQ(all[1], losses[1]);
    EXPECT_LT(all[2], losses[1]);

    std::filesystem::resize_file(folder / "snapshot.safetensors", 1000);
    expect_one_complaint(start(" 4 1" + flags), 1, program + ": snapshot.safetensors: ");
  }
  const Result both = alone("ddp_trainer 1 1 -v --quiet");
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--quiet"));
}

TEST_F(Programs, LogsAreWrittenOnRequestAndQuietMeansNothing) {
  expect_quiet_with_log("gradient_proof");
  for (const std::string program :
       {"ddp_trainer 1 1 --batch_size 500",
        "resnet50 --samples 4 --batch-size 2 --image-size 32 --epochs 1"}) {
    const Result result = alone(program + " --quiet");
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out + result.err, IsEmpty()) << program;
  }
}

TEST_F(Programs, TheRankThatFailsComplainsAndNobodyElse) {
  for (const Result& all : {alone("failing_program all"), two_ranks("failing_program all")})
    expect_one_complaint(all, 1, "failing_program: something else failed");
  const Result one = two_ranks("failing_program 1");
  expect_one_complaint(one, 1, "failing_program: something else failed");
  EXPECT_THAT(one.err, HasSubstr("lockstep: rank 1 of 2 failed first: "));
  // All ranks raise the error, and `lockstep run` alone prints it.
  const Result mismatch = two_ranks("failing_program mismatch");
  EXPECT_EQ(mismatch.code, 1);
  EXPECT_EQ(complaints(mismatch.err, "failing_program: "), 0) << mismatch.err;
  EXPECT_EQ(count(mismatch.err, "  Reason: collective #"), 1) << mismatch.err;
  expect_one_complaint(
      run("LOCKSTEP_BACKEND=nccl " + quoted_launcher + " run -n 2 " + quoted_bin + "large_batch"),
      1, "large_batch: LOCKSTEP_BACKEND: got 'nccl', expected auto");
}

TEST_F(Programs, ResNet50TrainsWithBothWaysToSplitData) {
  const std::string program =
      "resnet50 --samples 8 --batch-size 4 --image-size 32 --lr 0.002 --metrics metrics.jsonl ";
  for (const std::string flags : {"--split sampler --parameters same_seed",
                                  "--split rank0 --parameters broadcast --sync-batchnorm"}) {
    const Result result = two_ranks(program + "--epochs 4 " + flags);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count(result.out, "53 batch norms synchronised over all ranks"),
              flags.ends_with("--sync-batchnorm") ? 1 : 0);
    EXPECT_THAT(result.out, AllOf(HasSubstr("[epoch 3, batch 0] loss "), HasSubstr(", acc5 "),
                                  HasSubstr("4 steps took ")));
    const auto losses = values("train_loss");
    ASSERT_EQ(losses.size(), 4u);
    EXPECT_LT(losses[3], losses[0]);
    EXPECT_EQ(json_lines("log/intervals.jsonl").size(), 4u) << "its log is in log/ by itself";
    EXPECT_EQ(json_lines("log/metrics.jsonl").size(), metrics().size());
  }
  expect_one_complaint(alone("resnet50 --samples 8"), 1, "resnet50: --samples 8: expected a batch");
}

TEST_F(Programs, HelpIsCompleteAndWrongFlagsAreNamed) {
  // Of those flags that no other test gives to the program.
  const std::string logged = " --strategy docs/algorithms.md --metrics --run-log,--log-dir --trace";
  const std::pair<std::string, std::string> programs[] = {
      {"resnet9_cifar10", "--lr --weight-decay --seed --workers --device" + logged},
      {"mnist_cnn", "-v,--verbose --resume --dist-option --spars --device" + logged},
      {"gradient_proof", "--seed --threads" + logged},
      {"large_batch", "--lr --data --device" + logged},
      {"ddp_trainer", "total_epochs save_every --data --snapshot --device" + logged},
      {"single_trainer", "total_epochs save_every --data --snapshot --metrics"},
      {"resnet50", "--workers --device" + logged},
      {"language_model", "--seed --batch-size --backend --device" + logged},
      {"forecast", "--lr --seed --backend --device" + logged},
      {"custom_strategy", "--device"},
      {"regression", "--device"}};
  for (const auto& [program, flags] : programs) {
    const bool alone_only = program == "single_trainer";
    // One of each kind. Ranks of Lockstep print once what one process prints.
    const bool several = alone_only || program == "forecast";
    const Result help = several ? two_ranks(program + " --help") : alone(program + " --help");
    EXPECT_EQ(help.code, 0) << help.err;
    std::istringstream words(flags);
    for (std::string flag; words >> flag;) EXPECT_THAT(help.out, HasSubstr(flag)) << program;
    EXPECT_EQ(count(help.out, "Usage: "), alone_only ? 2 : 1) << help.out;
    EXPECT_THAT(help.out, HasSubstr("--config FILE")) << program;
    EXPECT_TRUE(program != "ddp_trainer" ||
                count(help.out, "total_epochs INT:INT in [1 - 1000000] REQUIRED") == 1);
    EXPECT_TRUE(flags != "--device" || count(help.out, "Start it with: lockstep run") == 1);
  }
  // Also where what is required is missing.
  const std::pair<const char*, const char*> wrong[] = {
      {"resnet9_cifar10 two", "two: unexpected argument\n"},
      {"large_batch --epohcs=2", "--epohcs: unknown option, did you mean --epochs?\n"},
      {"ddp_trainer --nonsense", "--nonsense: unknown option\n"},
      {"ddp_trainer 1 1 --nonsense", "--nonsense: unknown option\n"},
      {"single_trainer --batchsize 3", "--batchsize: unknown option, did you mean --batch_size?\n"},
      {"single_trainer 1 1 --batchsize 3", "--batchsize: unknown option, did you mean"}};
  for (const auto& [command, complaint] : wrong) {
    const Result refused = alone(command);
    EXPECT_EQ(refused.code, 2) << command;
    EXPECT_THAT(refused.err, StartsWith(complaint)) << command;
    EXPECT_THAT(refused.out, IsEmpty()) << command;
  }
  expect_one_complaint(alone("resnet50 --strategy nonsense"), 2, "--strategy: strategy: got ");
  expect_one_complaint(two_ranks("ddp_trainer 1 1 --metrics no/such/file"), 1,
                       "ddp_trainer: --metrics no/such/file: cannot write");
}

TEST_F(Programs, AGpuThatIsMissingIsRefused) {
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) GTEST_SKIP() << "LibTorch is built with CUDA";
  const auto result = two_ranks("mnist_cnn --device cuda");
  EXPECT_EQ(result.code, 1);
  const std::string said = ": got no cuda device on rank 0, and this build of LibTorch";
  EXPECT_EQ(count(result.err, said), 1) << result.err;
  expect_one_complaint(alone("mnist_cnn --device gpu"), 2,
                       "--device: expected auto, cpu or cuda, got gpu");
  EXPECT_EQ(alone("gradient_proof --device cuda").code, 2) << "it trains nothing";
}

}  // namespace
}  // namespace lockstep::testing
