#include "lockstep/train/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/train/checkpoint_folder.h"
#include "lockstep/train/safetensors.h"
#include "tests/ranks.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"
#include "tests/train/training.h"

namespace lockstep {
namespace {

using testing::failure;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::Training;

/// Each rank's training, with a random state of its own.
struct Rank {
  explicit Rank(int rank)
      : generator(at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank))) {}
  Checkpoint checkpoint() {
    return {
        .model = *training.model, .optimizer = training.optimizer.get(), .generator = generator};
  }
  Training training;
  at::Generator generator;
};

class Behind : public ::testing::TestWithParam<int> {};

TEST_P(Behind, TheFileHoldsWhatWasWhenItWasSaved) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Rank rank(group.rank());
    CheckpointWriter writer(group);
    for (int step = 0; step < 3; ++step) {
      rank.training.step(step);
      const std::string number = std::to_string(step);
      rank.checkpoint().save(folder / ("expected" + number), {.epoch = step}, group);
      writer.save(rank.checkpoint(), folder / ("behind" + number), {.epoch = step});
      rank.training.step(7);  // while the file is being written
    }
    writer.wait();
  });
  for (const char* number : {"0", "1", "2"}) {
    const auto expected = safetensors::read(folder / (std::string("expected") + number));
    const auto found = safetensors::read(folder / (std::string("behind") + number));
    EXPECT_EQ(found.metadata, expected.metadata);
    ASSERT_EQ(found.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors)
      EXPECT_TRUE(found.tensors.at(name).equal(tensor)) << number << ' ' << name;
  }
}

TEST_P(Behind, AnErrorReachesTheNextCallOnAllRanks) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Rank rank(group.rank());
    CheckpointWriter writer(group);
    writer.save(rank.checkpoint(), folder / "none/c");
    EXPECT_THAT(failure([&] { writer.save(rank.checkpoint(), folder / "c"); }),
                HasSubstr((folder / "none/c").string() + ": cannot create the file"));
    group.barrier().wait();
    if (group.rank() == 0) {
      EXPECT_FALSE(std::filesystem::exists(folder / "c"));
    }
    writer.save(rank.checkpoint(), folder / "c");
    writer.wait();
    EXPECT_TRUE(std::filesystem::exists(folder / "c"));
  });
}

TEST_P(Behind, TheEndWaitsForTheFile) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Rank rank(group.rank());
    CheckpointWriter(group).save(rank.checkpoint(), folder / "c");
  });
  EXPECT_TRUE(safetensors::read(folder / "c").checked);
}

TEST_P(Behind, AFolderKeepsItsNumbersAndItsLast) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Rank rank(group.rank());
    CheckpointWriter writer(group);
    for (int epoch = 1; epoch <= 4; ++epoch) {
      CheckpointFolder run(folder / "run", {.last = 2});  // gone before the file is written
      const auto path = run.save_behind(writer, rank.checkpoint(),
                                        {.epoch = epoch, .notes = {}, .score = epoch == 2 ? 1 : 0});
      EXPECT_EQ(path,
                folder / "run" / ("checkpoint-00000" + std::to_string(epoch) + ".safetensors"));
    }
    writer.wait();
    group.barrier().wait();
    for (int epoch = 1; epoch <= 4; ++epoch)
      EXPECT_EQ(std::filesystem::exists(
                    folder / "run" / ("checkpoint-00000" + std::to_string(epoch) + ".safetensors")),
                epoch > 1)
          << epoch;
    CheckpointFolder run(folder / "run");
    EXPECT_EQ(run.load_newest(rank.checkpoint(), group)->meta.epoch, 4);
  });
}

TEST_P(Behind, AFolderThatIsGoneIsAnErrorOfTheNextCallOnAllRanks) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Rank rank(group.rank());
    CheckpointWriter writer(group);
    const auto refuse = [] { throw CheckpointError("run/c: cannot remove: no"); };
    writer.save(rank.checkpoint(), folder / "c", {}, refuse);
    EXPECT_THAT(failure([&] { writer.wait(); }), HasSubstr("run/c: cannot remove: no"));
    std::ofstream(folder / "file") << "x";
    CheckpointFolder run(folder / "file/run");
    EXPECT_THAT(failure([&] { run.save_behind(writer, rank.checkpoint(), {}); }),
                HasSubstr("cannot make"));
    writer.wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Behind, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace lockstep
