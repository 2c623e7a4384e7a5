#include "lockstep/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <fstream>
#include <functional>
#include <memory>

#include "lockstep/core/error.h"
#include "lockstep/train/safetensors.h"
#include "tests/ranks.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::failure;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

struct Net : torch::nn::Module {
  explicit Net(int hidden = 6) : first(4, hidden), norm(hidden), second(hidden, 3) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    unused = register_parameter("unused", torch::ones({2}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
  at::Tensor unused;
};

struct OptimizerKind {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> make;
};

const OptimizerKind kinds[] = {
    {"Sgd",
     [](auto parameters) {
       return std::make_unique<torch::optim::SGD>(
           parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
     }},
    {"SgdWithoutMomentum",
     [](auto parameters) { return std::make_unique<torch::optim::SGD>(parameters, 0.1); }},
    {"Adam",
     [](auto parameters) {
       return std::make_unique<torch::optim::Adam>(parameters,
                                                   torch::optim::AdamOptions(0.01).amsgrad(true));
     }},
    {"AdamW",
     [](auto parameters) { return std::make_unique<torch::optim::AdamW>(parameters, 0.01); }},
    {"Rmsprop",
     [](auto parameters) {
       return std::make_unique<torch::optim::RMSprop>(
           parameters, torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
     }},
    {"Adagrad",
     [](auto parameters) { return std::make_unique<torch::optim::Adagrad>(parameters, 0.05); }}};

struct Training {
  explicit Training(const OptimizerKind& kind = kinds[0], int hidden = 6)
      : model(std::make_shared<Net>(hidden)), optimizer(kind.make(model->parameters())) {}

  void step(int number) {
    auto generator =
        torch::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(number));
    const at::Tensor x = torch::randn({8, 4}, generator);
    const at::Tensor y = torch::randint(0, 3, {8}, generator, torch::kLong);
    optimizer->step([&] {
      optimizer->zero_grad();
      at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(x), y);
      loss.backward();
      return loss;
    });
  }
  void save(const std::filesystem::path& path, const CheckpointMeta& meta = {}) const {
    save_checkpoint(path, *model, *optimizer, meta);
  }
  CheckpointMeta load(const std::filesystem::path& path) {
    return load_checkpoint(path, *model, *optimizer);
  }

  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const auto& tensor : model->parameters()) all.push_back(tensor.detach().clone());
    for (const auto& tensor : model->buffers()) all.push_back(tensor.clone());
    return all;
  }

  std::shared_ptr<Net> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "tensor " << i;
}

class EachOptimizer : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(EachOptimizer, GoesOnAsIfItHadNeverStopped) {
  const TemporaryFolder folder;
  Training whole(GetParam());
  for (int number = 0; number < 3; ++number) whole.step(number);
  whole.save(folder / "c", {.epoch = 3, .notes = {{"seed", "7"}}});

  Training fresh(GetParam());
  const CheckpointMeta meta = fresh.load(folder / "c");
  EXPECT_EQ(meta.epoch, 3);
  EXPECT_EQ(meta.notes, (std::map<std::string, std::string>{{"seed", "7"}}));
  expect_same(fresh.values(), whole.values());

  for (int number = 3; number < 7; ++number) {
    whole.step(number);
    fresh.step(number);
  }
  expect_same(fresh.values(), whole.values());
}

TEST_P(EachOptimizer, ASecondCopyOfACheckpointIsTheSameFile) {
  const TemporaryFolder folder;
  Training one(GetParam());
  for (int number = 0; number < 2; ++number) one.step(number);
  one.save(folder / "a");
  Training other(GetParam());
  other.step(9);
  other.load(folder / "a");
  other.save(folder / "b");
  EXPECT_TRUE(safetensors::read_bytes(folder / "a").equal(safetensors::read_bytes(folder / "b")));
}

INSTANTIATE_TEST_SUITE_P(Torch, EachOptimizer, ::testing::ValuesIn(kinds),
                         [](const auto& kind) { return kind.param.name; });

TEST(Checkpoint, ForgetsWhatTheOptimizerLearntAfterIt) {
  const TemporaryFolder folder;
  Training training;
  training.save(folder / "before the first step");
  const auto before = training.values();
  training.step(0);
  training.load(folder / "before the first step");
  expect_same(training.values(), before);
  EXPECT_TRUE(training.optimizer->state().empty());
}

TEST(Checkpoint, KeepsTheTensorsUnderTheirNames) {
  const TemporaryFolder folder;
  Training training;
  training.step(0);
  training.save(folder / "c");
  const auto content = safetensors::read(folder / "c");
  EXPECT_TRUE(content.tensors.at("first.weight").equal(training.model->first->weight));
  EXPECT_TRUE(content.tensors.at("norm.running_mean").equal(training.model->norm->running_mean));
  const auto& state = dynamic_cast<torch::optim::SGDParamState&>(
      *training.optimizer->state().at(training.model->first->weight.unsafeGetTensorImpl()));
  EXPECT_TRUE(
      content.tensors.at("optimizer/first.weight/momentum_buffer").equal(state.momentum_buffer()));
  EXPECT_FALSE(content.tensors.contains("optimizer/unused/momentum_buffer"));
}

TEST(Checkpoint, RestoresTheOptionsOfEveryGroup) {
  const TemporaryFolder folder;
  const auto groups = [](const Net& net, double lr) {
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(net.first->parameters());
    result.emplace_back(net.second->parameters(), std::make_unique<torch::optim::AdamOptions>(lr));
    return std::make_unique<torch::optim::Adam>(
        result, torch::optim::AdamOptions(0.5).betas(std::make_tuple(0.8, 0.7)));
  };
  Training saved;
  saved.optimizer = groups(*saved.model, 0.125);
  saved.step(0);
  saved.save(folder / "c");

  Training loaded;
  loaded.optimizer = groups(*loaded.model, 0.25);
  for (auto& group : loaded.optimizer->param_groups())
    static_cast<torch::optim::AdamOptions&>(group.options()).betas(std::make_tuple(0.1, 0.2));
  loaded.load(folder / "c");
  EXPECT_EQ(loaded.optimizer->param_groups()[1].options().get_lr(), 0.125);
  for (auto& group : loaded.optimizer->param_groups())
    EXPECT_EQ(static_cast<torch::optim::AdamOptions&>(group.options()).betas(),
              std::make_tuple(0.8, 0.7));

  Training other;
  EXPECT_THAT(failure([&] { other.load(folder / "c"); }),
              HasSubstr("optimizer: expected torch::optim::SGD, found torch::optim::Adam"));
  other.optimizer = kinds[2].make(other.model->parameters());
  EXPECT_THAT(failure([&] { other.load(folder / "c"); }),
              HasSubstr("optimizer: expected 1 parameter groups, found 2"));
}

TEST(Checkpoint, KeepsTheMemoryOfParameters) {
  const TemporaryFolder folder;
  Training saved;
  saved.save(folder / "c");
  Training loaded;
  const void* const memory = loaded.model->first->weight.data_ptr();
  loaded.load(folder / "c");
  EXPECT_EQ(loaded.model->first->weight.data_ptr(), memory);
  EXPECT_TRUE(loaded.model->first->weight.requires_grad());
}

TEST(Checkpoint, AnOptimizerOfAnotherModelCannotBeSaved) {
  const TemporaryFolder folder;
  Training training;
  Training other;
  EXPECT_THAT(failure([&] { save_checkpoint(folder / "c", *training.model, *other.optimizer); }),
              AllOf(HasSubstr((folder / "c").string()), HasSubstr("not in the model")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Checkpoint, AnOptimizerThatCannotBeWrittenIsAnErrorAndNoFile) {
  const TemporaryFolder folder;
  Training training;
  training.optimizer = std::make_unique<torch::optim::LBFGS>(training.model->parameters());
  training.step(0);
  EXPECT_THAT(failure([&] { training.save(folder / "c"); }),
              HasSubstr((folder / "c").string() + ": optimizer: "));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// A checkpoint, and ways to spoil it.
class Spoilt : public ::testing::Test {
 protected:
  Spoilt() {
    Training training;
    training.step(0);
    training.save(path);
    content = safetensors::read(path);
  }
  /// What loading says; the model and the optimizer must not have been touched.
  std::string error() {
    safetensors::write(path, content);
    Training training;
    training.step(5);
    const auto before = training.values();
    const std::string text = failure([&] { training.load(path); });
    expect_same(training.values(), before);
    training.save(folder / "after");
    Training again;
    again.load(folder / "after");
    EXPECT_THAT(text, HasSubstr(path.string() + ": "));
    return text;
  }

  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "c";
  safetensors::Content content;
};

TEST_F(Spoilt, AWrongShapeNamesTheTensor) {
  content.tensors["second.weight"] = torch::zeros({6, 3});
  EXPECT_THAT(error(),
              HasSubstr("tensor 'second.weight': expected Float [3, 6], found Float [6, 3]"));
}

TEST_F(Spoilt, AWrongDtypeNamesTheTensor) {
  content.tensors["norm.running_var"] = content.tensors["norm.running_var"].to(torch::kDouble);
  EXPECT_THAT(error(),
              HasSubstr("tensor 'norm.running_var': expected Float [6], found Double [6]"));
}

TEST_F(Spoilt, AMissingTensorIsNamed) {
  content.tensors.erase("first.bias");
  EXPECT_THAT(error(), HasSubstr("tensor 'first.bias': the model has it, the file has not"));
}

TEST_F(Spoilt, AnUnknownTensorIsNamed) {
  content.tensors["third.weight"] = torch::zeros({1});
  EXPECT_THAT(error(), HasSubstr("tensor 'third.weight': the file has it, the model has not"));
}

TEST_F(Spoilt, AWrongOptimizerTensorIsNamed) {
  content.tensors["optimizer/first.weight/momentum_buffer"] = torch::zeros({5});
  EXPECT_THAT(
      error(),
      AllOf(HasSubstr("optimizer/first.weight/momentum_buffer"),
            HasSubstr("expected Float [6, 4] as parameter 'first.weight', found Float [5]")));
}

TEST_F(Spoilt, AMissingOptimizerTensorIsNamed) {
  content.tensors.erase("optimizer/first.weight/momentum_buffer");
  EXPECT_THAT(error(), HasSubstr("\"optimizer/first.weight/momentum_buffer\" is missing"));
}

TEST_F(Spoilt, ABadDescriptionIsAnError) {
  const std::string good = content.metadata["optimizer"];
  for (const std::string& text : {std::string("{"), std::string("[]"), std::string("{}"),
                                  std::string("null"), good.substr(0, good.size() / 2)}) {
    content.metadata["optimizer"] = text;
    EXPECT_THAT(error(), HasSubstr("optimizer: ")) << text;
  }
  std::string without_lr = good;
  without_lr.replace(without_lr.find("\"lr\""), 4, "\"rl\"");
  content.metadata["optimizer"] = without_lr;
  EXPECT_THAT(error(), HasSubstr("optimizer: "));
  std::string text_for_lr = good;
  text_for_lr.replace(text_for_lr.find("\"lr\":0.1"), 8, "\"lr\":\"x\"");
  content.metadata["optimizer"] = text_for_lr;
  EXPECT_THAT(error(), HasSubstr("optimizer: "));
}

TEST_F(Spoilt, BadMetadataIsAnError) {
  const auto good = content.metadata;
  content.metadata.erase("lockstep");
  EXPECT_THAT(error(), HasSubstr("expected a Lockstep checkpoint, found no 'lockstep'"));
  content.metadata = good;
  content.metadata["lockstep"] = "2";
  EXPECT_THAT(error(), HasSubstr("expected format version 1, found '2'"));
  for (const char* epoch : {"", "x", "1x", "-1", "99999999999999999999"}) {
    content.metadata = good;
    content.metadata["epoch"] = epoch;
    EXPECT_THAT(error(), HasSubstr("epoch: expected a number"));
  }
}

class OverAGroup : public ::testing::TestWithParam<int> {};

TEST_P(OverAGroup, EveryRankLoadsWhatRank0Saved) {
  const TemporaryFolder folder;
  Training reference;
  reference.step(0);
  std::vector<std::unique_ptr<Training>> ranks;
  for (int rank = 0; rank < GetParam(); ++rank) ranks.push_back(std::make_unique<Training>());
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Training& own = *ranks[static_cast<std::size_t>(group.rank())];
    // Only rank 0 holds what is to be saved.
    const Training& saved = group.rank() == 0 ? reference : own;
    save_checkpoint(folder / "c", *saved.model, *saved.optimizer, {.epoch = 2}, group);
    const CheckpointMeta meta = load_checkpoint(folder / "c", *own.model, *own.optimizer, group);
    EXPECT_EQ(meta.epoch, 2);
  });
  reference.step(1);
  for (auto& own : ranks) {
    own->step(1);
    expect_same(own->values(), reference.values());
  }
}

TEST_P(OverAGroup, WhatFailsOnRank0FailsOnAll) {
  std::vector<std::unique_ptr<Training>> ranks;
  for (int rank = 0; rank < GetParam(); ++rank) ranks.push_back(std::make_unique<Training>());
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Training& own = *ranks[static_cast<std::size_t>(group.rank())];
    const auto saving = failure(
        [&] { save_checkpoint("no/such/folder/c", *own.model, *own.optimizer, {}, group); });
    EXPECT_THAT(saving, HasSubstr("no/such/folder/c: cannot create the file: No such file"));
    const auto loading =
        failure([&] { load_checkpoint("no/such/c", *own.model, *own.optimizer, group); });
    EXPECT_THAT(loading, HasSubstr("no/such/c: cannot open: No such file"));
    const auto checking = failure([&] { check_checkpoint_path("/dev/null", group); });
    EXPECT_THAT(checking, HasSubstr("/dev/null: exists and is not a regular file"));
    if (group.rank() != 0) {
      EXPECT_THAT(saving, HasSubstr("rank 0: "));
    }
    group.barrier().wait();  // the group goes on
  });
}

TEST_P(OverAGroup, OneRankWithAnotherModelFailsOnAllAndChangesNone) {
  const TemporaryFolder folder;
  Training reference;
  reference.save(folder / "c");
  const int odd = GetParam() - 1;
  std::vector<std::unique_ptr<Training>> ranks;
  for (int rank = 0; rank < GetParam(); ++rank)
    ranks.push_back(std::make_unique<Training>(kinds[0], rank == odd ? 5 : 6));
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    const Group group(std::move(communicator));
    Training& own = *ranks[static_cast<std::size_t>(group.rank())];
    const auto before = own.values();
    const auto text =
        failure([&] { load_checkpoint(folder / "c", *own.model, *own.optimizer, group); });
    EXPECT_THAT(text,
                HasSubstr("tensor 'first.weight': expected Float [5, 4], found Float [6, 4]"));
    if (group.rank() != odd) {
      EXPECT_THAT(text, HasSubstr("rank " + std::to_string(odd) + ": "));
    }
    expect_same(own.values(), before);
  });
}

TEST_P(OverAGroup, CheckingThePathLeavesNothingBehind) {
  const TemporaryFolder folder;
  testing::run_ranks(GetParam(), [&](std::shared_ptr<Communicator> communicator) {
    check_checkpoint_path(folder / "c", Group(std::move(communicator)));
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, OverAGroup, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace lockstep
