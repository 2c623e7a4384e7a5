// The two ResNets: begun with Python's weights, fed from folders, stopped and gone on with.

#include "lockstep/model_files.h"
#include "tests/examples/program_run.h"
#include "tests/png_file.h"

namespace lockstep::testing {
namespace {

class ImageTraining : public ProgramRun {
 protected:
  /// That the steps of a run's log rise over its parts, up to the last.
  void expect_rising_steps(double last) const {
    for (const char* file : {"log/metrics.jsonl", "log/intervals.jsonl"}) {
      double before = 0;
      for (const auto& line : json_lines(file)) {
        EXPECT_GE(line["step"], before) << file;
        before = line["step"];
      }
      EXPECT_EQ(before, last) << file;
    }
  }
};

TEST_F(ImageTraining, ResNet9GoesOnInTheSameBits) {
  const std::string program =
      "resnet9_cifar10 --batch-size 16 --images 48 --augment --sync-batchnorm "
      "--metrics metrics.jsonl ";
  const Result whole = two_ranks(program + "--epochs 2 --checkpoint-dir whole");
  ASSERT_EQ(whole.code, 0) << whole.err;
  for (const char* part : {"coloured shapes", "epoch 2", "training took", " images/s", "test loss",
                           "8 batch norms synchronised over all ranks"})
    EXPECT_EQ(count(whole.out, part), 1) << part << whole.out;
  const auto losses = values("train_loss");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_LT(losses[1], losses[0]);
  EXPECT_EQ(values("test_accuracy").size(), 1u);
  EXPECT_GT(values("images_per_second").at(0), 0.0);
  std::filesystem::remove(folder / "metrics.jsonl");
  const std::string parts = program + "--checkpoint-dir parts --run-log log ";
  const Result first = two_ranks(parts + "--epochs 1 --quiet");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out + first.err, IsEmpty());
  const Result rest = two_ranks(parts + "--epochs 2");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(count(rest.out, "parts: 1 epoch is done"), 1) << rest.out;
  EXPECT_THAT(rest.out, AllOf(Not(HasSubstr("epoch 1  ")), HasSubstr("epoch 2  ")));
  EXPECT_FALSE(newest("whole").empty());
  EXPECT_TRUE(newest("whole") == newest("parts"));
  // The metrics of a run that goes on are added to.
  EXPECT_EQ(metrics().size(), 2u + 2u);
  // A part that has nothing left to do ends as the others.
  const Result done = two_ranks(parts + "--epochs 2");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("parts: 2 epochs are done"), HasSubstr("test loss ")));
  expect_rising_steps(2 * 3);

  std::ofstream(folder / "file") << "x";
  expect_one_complaint(two_ranks(program + "--checkpoint-dir file/run"), 1,
                       "resnet9_cifar10: --checkpoint-dir file/run: cannot make: ");
}

TEST_F(ImageTraining, ResNet50sStepsRiseOverARunsParts) {
  const std::string program =
      "resnet50 --samples 4 --batch-size 2 --image-size 32 --lr 0.002 --checkpoint-dir run "
      "--epochs ";
  Result result;
  for (const auto& [epochs, steps] :
       {std::pair("1", "2"), std::pair("2", "2"), std::pair("2", "0")}) {
    result = alone(program + epochs);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(std::string("\n") + steps + " steps took "));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("[epoch")));
  EXPECT_EQ(count(result.out, "run: 2 epochs are done"), 1) << result.out;
  expect_rising_steps(2 * 2);
}

TEST_F(ImageTraining, ResNet50BeginsWithPythonsWeights) {
  const std::string python = "'" LOCKSTEP_TORCH_PYTHON "' -B '" LOCKSTEP_SOURCE_DIR
                             "/tests/examples/resnet50_weights.py' weights.pt";
  const Result written = run(python);
  if (written.code == 77 || written.code == 127)
    GTEST_SKIP() << "no Python with torch: " << written.out;
  ASSERT_EQ(written.code, 0) << written.err;

  // A rate that changes nothing, so that the checkpoint holds what was loaded.
  const std::string program =
      "resnet50 --weights weights.pt --samples 4 --batch-size 2 --image-size 32 --lr 1e-20 "
      "--epochs 1 --checkpoint-dir run";
  const Result begun = two_ranks(program);
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_EQ(count(begun.out, "weights.pt, but for its last layer, is loaded\n"), 1);
  const auto expected = read_torch_file(folder / "weights.pt").toGenericDict();
  const auto found = safetensors::read(folder / "run" / "checkpoint-000001.safetensors");
  std::size_t compared = 0;
  for (const auto& item : expected) {
    const std::string& name = item.key().toStringRef();
    ASSERT_TRUE(found.tensors.contains(name)) << name;
    if (name.find("running_") != std::string::npos || name.starts_with("fc.") ||
        name.ends_with("num_batches_tracked"))
      continue;
    EXPECT_TRUE(found.tensors.at(name).allclose(item.value().toTensor(), 1e-6, 1e-9)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 53u * 3);

  std::filesystem::resize_file(folder / "weights.pt", 100'000);
  const Result spoilt = alone(program);
  EXPECT_EQ(spoilt.code, 1);
  EXPECT_THAT(spoilt.err, HasSubstr("resnet50: weights.pt: "));
}

#if LOCKSTEP_IMAGES
TEST_F(ImageTraining, ResNet50ReadsAFolderOfImages) {
  for (int i = 0; i < 12; ++i) {
    const std::string name = "pictures/" + std::string(i % 3 ? "cat/" : "ape/");
    std::filesystem::create_directories(folder / name);
    std::ofstream(folder / (name + std::to_string(i) + ".png"), std::ios::binary)
        << png_file(40, 50, PngColour::gray, std::string(40 * 50, static_cast<char>(20 * i)));
  }
  const std::string program =
      "resnet50 --data pictures --batch-size 3 --image-size 32 --lr 0.002 --epochs 1 ";
  const Result read = two_ranks(program + "--split rank0 --workers 0");
  ASSERT_EQ(read.code, 0) << read.err;
  EXPECT_THAT(read.out, AllOf(HasSubstr("ResNet-50, 12 images of 32x32"),
                              HasSubstr("[epoch 0, batch 0] loss "), HasSubstr("2 steps took ")));
  // Each rank reads its share. Whichever reads the damaged image, the program reports the error
  // once, and the launcher once more.
  std::filesystem::resize_file(folder / "pictures/cat/8.png", 60);
  const Result damaged = two_ranks(program);
  expect_one_complaint(damaged, 1, "resnet50: batch ");
  EXPECT_THAT(damaged.err, HasSubstr("pictures/cat/8.png: is a damaged or truncated PNG image"));

  expect_one_complaint(alone("resnet50 --data pictures --batch-size 13"), 1,
                       "resnet50: --data pictures: 12 images: expected a batch of 13");
  expect_one_complaint(alone("resnet50 --data nowhere"), 1, "resnet50: nowhere: cannot list: ");
}
#endif

}  // namespace
}  // namespace lockstep::testing
