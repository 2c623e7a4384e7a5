#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tests/groups.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string name_of(int number) {
  return "checkpoint-00000" + std::to_string(number) + ".safetensors";
}

void flip_last_bit(const std::filesystem::path& path) {
  std::string bytes = content(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A model whose weight tells which checkpoint it came from.
struct Model {
  explicit Model(double value = 0) { torch::nn::init::constant_(linear->weight, value); }
  Checkpoint checkpoint() { return {.model = *linear}; }
  double value() const { return linear->weight[0][0].item<double>(); }
  torch::nn::Linear linear{2, 2};
};

/// Saves the models 1, 2, … with these scores.
void save_all(const std::filesystem::path& path, Keep keep,
              const std::vector<std::optional<double>>& scores) {
  run_groups(2, [&](const Group& group) {
    CheckpointFolder folder(path, keep);
    for (std::size_t i = 0; i < scores.size(); ++i)
      folder.save(Model(static_cast<double>(i + 1)).checkpoint(),
                  {.epoch = static_cast<std::int64_t>(i + 1), .notes = {}, .score = scores[i]},
                  group);
  });
}

TEST(CheckpointFolder, KeepsTheLastAndTheBestAndOtherFiles) {
  const TemporaryFolder folder;
  save_all(folder / "run", {.last = 2}, {0.5, 0.9, 0.7, std::nullopt, 0.8, 0.1});
  EXPECT_THAT(names_in(folder / "run"), ElementsAre(name_of(2), name_of(5), name_of(6)));
  const CheckpointFolder found(folder / "run");
  EXPECT_EQ(found.newest().value().string(), (folder / "run" / name_of(6)).string());
  EXPECT_EQ(found.best().value().string(), (folder / "run" / name_of(2)).string());
  // No score is worse than one that is NaN.
  save_all(folder / "nan", {.last = 1}, {std::nan(""), 0.9, 0.5});
  EXPECT_THAT(names_in(folder / "nan"), ElementsAre(name_of(2), name_of(3)));
  save_all(folder / "last", {.last = 1, .best = false}, {0.9, 0.5, 0.7});
  EXPECT_THAT(names_in(folder / "last"), ElementsAre(name_of(3)));
  EXPECT_THROW(CheckpointFolder(folder / "run", {.last = 0}), InvalidArgument);
  const char* const others[] = {"checkpoint-1.safetensors", "checkpoint-x.safetensors",
                                "checkpoint-000001.safetensors.bak", "notes.txt"};
  for (const auto* name : others) folder.write(std::string("mixed/") + name, "mine");
  save_all(folder / "mixed", {.last = 1}, {0.5, 0.7, 0.6});
  EXPECT_EQ(names_in(folder / "mixed").size(), std::size(others) + 2);
  for (const auto* name : others)
    EXPECT_TRUE(std::filesystem::exists(folder / "mixed" / name)) << name;
}

TEST(CheckpointFolder, TheNewestIsLoadedAndGoesOnCounting) {
  const TemporaryFolder folder;
  save_all(folder / "run", {}, {0.25, 0.5});
  run_groups(3, [&](const Group& group) {
    Model model(7);
    CheckpointFolder none(folder / "none");
    EXPECT_FALSE(none.load_newest(model.checkpoint(), group));
    EXPECT_FALSE(none.newest());
    EXPECT_FALSE(none.best());
    EXPECT_FALSE(std::filesystem::exists(folder / "none"));
    EXPECT_EQ(model.value(), 7);
    CheckpointFolder unlisted(std::string(300, 'x'));  // longer than a name may be
    EXPECT_THROW(unlisted.newest(), CheckpointError);
    EXPECT_THROW(unlisted.load_newest(model.checkpoint(), group), CheckpointError);
    CheckpointFolder run(folder / "run");
    // Another model is an error and no damage.
    torch::nn::Linear larger(3, 3);
    const Checkpoint other{.model = *larger};
    EXPECT_THAT(failure([&] { run.load_newest(other, group); }),
                AllOf(HasSubstr(name_of(2)), HasSubstr("tensor 'weight': expected")));
    const auto found = run.load_newest(model.checkpoint(), group);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->meta.epoch, 2);
    EXPECT_EQ(found->meta.score, 0.5);
    EXPECT_EQ(model.value(), 2);
    EXPECT_EQ(run.save(model.checkpoint(), {}, group).filename().string(), name_of(3));
  });
}

TEST(CheckpointFolder, ADamagedNewestIsSkippedWithItsReason) {
  const TemporaryFolder folder;
  save_all(folder / "run", {.last = 3}, {0.1, 0.2, 0.3});
  save_all(folder / "damaged", {}, {0.1});
  flip_last_bit(folder / "damaged" / name_of(1));
  flip_last_bit(folder / "run" / name_of(3));
  std::ofstream(folder / "run" / name_of(4)) << "short";
  run_groups(2, [&](const Group& group) {
    Model model;
    CheckpointFolder run(folder / "run", {.last = 2});
    const auto found = run.load_newest(model.checkpoint(), group);
    ASSERT_TRUE(found);
    EXPECT_EQ(model.value(), 2);
    EXPECT_THAT(found->changes,
                AllOf(HasSubstr("skipped " + (folder / "run" / name_of(3)).string() + ": tensor"),
                      HasSubstr("damaged"), HasSubstr(name_of(4) + ": ")));
    // The damaged are not among those that are kept, so the last two good ones stay.
    run.save(model.checkpoint(), {}, group);
    EXPECT_TRUE(std::filesystem::exists(folder / "run" / name_of(2)));
    EXPECT_FALSE(std::filesystem::exists(folder / "run" / name_of(1)));
    // Nothing but damaged ones is an error.
    CheckpointFolder damaged(folder / "damaged");
    EXPECT_THAT(failure([&] { damaged.load_newest(model.checkpoint(), group); }),
                HasSubstr("found no undamaged checkpoint: skipped"));
    group.barrier().wait();
  });
}

TEST(CheckpointFolder, IsWrittenByOneJobAtATime) {
  const TemporaryFolder folder;
  save_all(folder / "run", {}, {0.1, 0.2});
  const auto lock = folder / "run" / ".lockstep-checkpoints.lock";
  std::ofstream(lock) << "run 5f3a on host elsewhere, pid 77, since 2026-01-01 00:00:00 UTC\n";
  const int other = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  run_groups(2, [&](const Group& group) {
    const auto refused =
        AllOf(HasSubstr((folder / "run").string() + ": another job writes to this folder: "),
              HasSubstr("run 5f3a on host elsewhere, pid 77, since 2026-01-01 00:00:00 UTC"),
              HasSubstr("name another folder"));
    Model model;
    CheckpointFolder run(folder / "run", {.last = 1});
    EXPECT_TRUE(run.load_newest(model.checkpoint(), group)) << "which changes nothing";
    EXPECT_THAT(failure([&] { run.lock(group); }), refused);
    EXPECT_THAT(failure([&] { run.save(model.checkpoint(), {}, group); }), refused);
    CheckpointWriter writer(group);
    EXPECT_THAT(failure([&] { run.save_behind(writer, model.checkpoint(), {}); }), refused);
    group.barrier().wait();
    if (group.rank() == 0) {
      EXPECT_TRUE(std::filesystem::exists(folder / "run" / name_of(1))) << "nothing was pruned";
      ::close(other);  // the other job ends, or is killed
    }
    group.barrier().wait();
    run.lock(group);
    CheckpointFolder(folder / "run").lock(group);  // of the same job
    EXPECT_TRUE(std::filesystem::exists(lock));
    run.save_behind(writer, model.checkpoint(), {});
    writer.wait();
    EXPECT_EQ(run.newest().value().filename().string(), name_of(3));
  });
  EXPECT_THAT(names_in(folder / "run"), ElementsAre(name_of(2), name_of(3)))
      << "the best and the last, and no lock";
}

}  // namespace
}  // namespace lockstep::testing
