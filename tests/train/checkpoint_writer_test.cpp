#include <sys/resource.h>
#include <torch/optim/sgd.h>

#include <span>

#include "checkpoint/checkpoint_content.h"
#include "lockstep/model_files.h"
#include "tests/comm/failures.h"
#include "tests/groups.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

/// Each rank's training, with a random state of its own.
struct Rank {
  explicit Rank(int rank)
      : generator(at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank))) {}
  Checkpoint checkpoint() {
    return {.model = *training.model, .optimizer = *training.optimizer, .generator = generator};
  }
  Training training;
  at::Generator generator;
};

class Behind : public ::testing::TestWithParam<int> {};

TEST_P(Behind, TheFileHoldsWhatWasWhenItWasSavedAlsoIfPrepared) {
  for (const bool prepares : {false, true}) {
    const TemporaryFolder folder;
    run_groups(GetParam(), [&](const Group& group) {
      Rank rank(group.rank());
      CheckpointWriter writer(group);
      for (int step = 0; step < 3; ++step) {
        if (prepares) writer.prepare(rank.checkpoint());
        rank.training.step(step);
        const std::string number = std::to_string(step);
        rank.checkpoint().save(folder / ("expected" + number), {.epoch = step}, group);
        writer.save(rank.checkpoint(), folder / ("behind" + number), {.epoch = step});
        rank.training.step(7);  // while the file is being written
      }
      writer.wait();
    });
    for (const std::string number : {"0", "1", "2"}) {
      EXPECT_EQ(testing::content(folder / ("behind" + number)),
                testing::content(folder / ("expected" + number)))
          << number << prepares;
    }
  }
}

TEST(CheckpointWriter, AChildForkedDuringAWriteMayDestroyIt) {
  const TemporaryFolder folder;
  run_groups(1, [&](const Group& group) {
    std::promise<void> forked;
    std::optional<CheckpointWriter> writer(group);
    writer->save(Rank(0).checkpoint(), folder / "file", {}, [&] { forked.get_future().wait(); });
    EXPECT_EQ(in_child([&] { return ::alarm(5), writer.reset(), std::string(); }), "");
    forked.set_value();
  });
}

TEST(CheckpointWriter, StoresConjugatesAndNegativesAndNamesWhatItCannotStore) {
  const TemporaryFolder folder;
  run_groups(1, [&](const Group& group) {
    // Of the lazy ones the memory has other values.
    torch::nn::Module model;
    model.register_buffer("conjugate",
                          torch::complex(torch::ones({2}), torch::arange(2.0F)).conj());
    model.register_buffer("negative", torch::_neg_view(torch::ones({2})));
    CheckpointWriter writer(group);
    for (const char* file : {"c", "again"}) {
      writer.save({.model = model}, folder / file);
      writer.wait();
      const auto content = safetensors::read(folder / file);
      for (const auto& item : model.named_buffers())
        EXPECT_TRUE(content.tensors.at(item.key()).equal(item.value().resolve_conj()))
            << item.key();
    }
    for (const auto& tensor : {torch::ones({2}).to_sparse(), torch::empty({2}, at::kMeta),
                               torch::ones({2}, at::kComplexDouble)}) {
      const Checkpoint checkpoint{.model = ModelView({{"w", tensor}})};
      const auto named = HasSubstr("tensor 'w': cannot ");
      CheckpointWriter fresh(group);
      EXPECT_THAT(failure([&] { fresh.prepare(checkpoint); }), named);
      EXPECT_THAT(failure([&] { fresh.save(checkpoint, "unused"); }), named);
    }
  });
}

TEST(PreparedMemory, IsWhatTheFirstStepBrings) {
  // Of all but LBFGS, which decides in a step what it keeps.
  for (const auto& kind : std::span(kinds).first<6>()) {
    SCOPED_TRACE(kind.name);
    Training training(kind);
    training.model->unused.set_requires_grad(false);
    const Checkpoint checkpoint{.model = *training.model, .optimizer = *training.optimizer};
    const auto foretold = detail::future_tensors(checkpoint);
    training.step(0);
    const auto found = detail::content_of(checkpoint, {}, 0, 1).tensors;
    EXPECT_EQ(foretold.size(), found.size());
    for (const auto& [name, tensor] : found) {
      ASSERT_TRUE(foretold.contains(name)) << name;
      EXPECT_EQ(foretold.at(name).sizes(), tensor.sizes()) << name;
      EXPECT_EQ(foretold.at(name).scalar_type(), tensor.scalar_type()) << name;
    }
  }
}

/// How often this thread has come to a page of memory that was not there.
long new_pages() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(PreparedMemory, ServesTheFirstSave) {
  const TemporaryFolder folder;
  run_groups(1, [&](const Group& group) {
    torch::nn::Linear model(2048, 2048);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Checkpoint checkpoint{.model = *model, .optimizer = sgd};
    CheckpointWriter writer(group);
    writer.prepare(checkpoint);
    for (const auto& parameter : model->parameters())
      parameter.mutable_grad() = torch::ones_like(parameter);
    sgd.step();
    writer.wait();
    const long before = new_pages();
    writer.save(checkpoint, folder / "c");
    EXPECT_LT(new_pages() - before, 500) << "of 8192 that the copy has";
  });
}

TEST_P(Behind, AnErrorReachesTheNextCallOnAllRanks) {
  const TemporaryFolder folder;
  ::testing::internal::CaptureStderr();
  run_groups(GetParam(), [&](const Group& group) {
    Rank rank(group.rank());
    torch::nn::Linear other(2, 2);
    CheckpointWriter writer(group);
    EXPECT_THAT(
        failure([&] { writer.prepare({.model = *other, .optimizer = *rank.training.optimizer}); }),
        HasSubstr("that is not in the model"));
    writer.save(rank.checkpoint(), folder / "none/c");
    EXPECT_THAT(failure([&] { writer.save(rank.checkpoint(), folder / "c"); }),
                HasSubstr((folder / "none/c").string() + ": cannot create the file"));
    group.barrier().wait();
    if (group.rank() == 0) {
      EXPECT_FALSE(std::filesystem::exists(folder / "c"));
    }
    const auto refuse = [] { throw CheckpointError("run/c: cannot remove: no"); };
    writer.save(rank.checkpoint(), folder / "c", {}, refuse);
    EXPECT_THAT(failure([&] { writer.wait(); }), HasSubstr("run/c: cannot remove: no"));
    EXPECT_TRUE(std::filesystem::exists(folder / "c"));
    std::ofstream(folder / "file") << "x";
    CheckpointFolder run(folder / "file/run");
    EXPECT_THAT(failure([&] { run.save_behind(writer, rank.checkpoint(), {}); }),
                HasSubstr("cannot create"));
    writer.wait();
    writer.save(rank.checkpoint(), folder / "last", {}, [] { throw 1; });
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("is not a std::exception"));
  EXPECT_TRUE(safetensors::read(folder / "last").checked) << "a writer's end waits for its file";
}

TEST_P(Behind, AFolderKeepsItsNumbersAndItsLast) {
  const TemporaryFolder folder;
  const auto path_of = [&](int epoch) {
    return folder / ("run/checkpoint-00000" + std::to_string(epoch) + ".safetensors");
  };
  run_groups(GetParam(), [&](const Group& group) {
    Rank rank(group.rank());
    CheckpointWriter writer(group);
    for (int epoch = 1; epoch <= 4; ++epoch) {
      CheckpointFolder run(folder / "run", {.last = 2});  // gone before the file is written
      EXPECT_EQ(run.save_behind(writer, rank.checkpoint(),
                                {.epoch = epoch, .notes = {}, .score = epoch == 2 ? 1 : 0}),
                path_of(epoch));
    }
    writer.wait();
    group.barrier().wait();
    for (int epoch = 1; epoch <= 4; ++epoch)
      EXPECT_EQ(std::filesystem::exists(path_of(epoch)), epoch > 1) << epoch;
    CheckpointFolder run(folder / "run");
    EXPECT_EQ(run.load_newest(rank.checkpoint(), group)->meta.epoch, 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Behind, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace lockstep::testing
