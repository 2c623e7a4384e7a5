#include "lockstep/checkpoint.h"

#include <torch/types.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/model_files.h"
#include "tests/other_numbers.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

TEST(Checkpoint, OfEachOptimizerGoesOnUnderEveryLocale) {
  const TemporaryFolder folder;
  for (const auto& kind : kinds) {
    SCOPED_TRACE(kind.name);
    Training whole(kind);
    for (int number = 0; number < 2; ++number) whole.step(number);
    whole.save(folder / "c", {.epoch = 123456, .notes = {{"seed", "7"}}, .score = 0.625});
    {
      const OtherNumbers other;
      Training fresh(kind);
      fresh.step(9);
      const CheckpointMeta meta = fresh.load(folder / "c");
      EXPECT_EQ(meta.epoch, 123456);
      EXPECT_EQ(meta.score, 0.625);
      EXPECT_EQ(meta.notes, (std::map<std::string, std::string>{{"seed", "7"}}));
      expect_equal_tensors(fresh.values(), whole.values());
      fresh.save(folder / "other", meta);
    }
    EXPECT_EQ(content(folder / "other"), content(folder / "c"));
    Training last(kind);
    EXPECT_EQ(last.load(folder / "other").score, 0.625);
    whole.step(2);
    last.step(2);
    expect_equal_tensors(last.values(), whole.values());
  }
}

TEST(Checkpoint, ForgetsWhatTheOptimizerLearntAfterItAndKeepsTheMemoryOfParameters) {
  const TemporaryFolder folder;
  Training training;
  const auto& weight = training.model->first->weight;
  const void* const memory = weight.data_ptr();
  training.save(folder / "before the first step");
  const auto before = training.values();
  training.step(0);
  training.load(folder / "before the first step");
  expect_equal_tensors(training.values(), before);
  EXPECT_TRUE(training.optimizer->state().empty());
  EXPECT_EQ(weight.data_ptr(), memory);
  EXPECT_TRUE(weight.requires_grad());
  // Nor has the optimizer a state that no step has filled.
  auto& optimizer = training.optimizer;
  optimizer = std::make_unique<torch::optim::Adam>(training.model->parameters());
  optimizer->state()[weight.unsafeGetTensorImpl()] =
      std::make_unique<torch::optim::AdamParamState>();
  training.save(folder / "c");
  training.load(folder / "c");
  EXPECT_TRUE(optimizer->state().empty());
}

TEST(Checkpoint, RestoresTheOptionsOfEveryGroup) {
  const TemporaryFolder folder;
  const auto groups = [](const Net& net, double lr, std::tuple<double, double> betas) {
    const auto options = torch::optim::AdamOptions(0.5).betas(betas);
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(net.first->parameters());
    result.emplace_back(net.second->parameters(),
                        std::make_unique<torch::optim::AdamOptions>(options));
    result.back().options().set_lr(lr);
    return std::make_unique<torch::optim::Adam>(result, options);
  };
  Training saved, loaded;
  saved.optimizer = groups(*saved.model, 0.125, {0.8, 0.7});
  saved.step(0);
  saved.save(folder / "c");
  loaded.optimizer = groups(*loaded.model, 0.25, {0.1, 0.2});
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

/// An optimizer of a program, whose load() may read anything.
struct OwnSgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::SGD::load(archive);
    ++loads;
    if (refuses) throw CheckpointError("it is not mine");
  }
  int loads = 0;
  bool refuses = false;
};

/// A learning rate of a program's own.
struct OwnRate {
  std::string state() const { return text; }
  void check_state(const std::string& state) const {
    if (state != "halved") throw CheckpointError("expected 'halved', found '" + state + "'");
  }
  void load_state(const std::string& state) { text = state; }
  std::string text;
};

TEST(Checkpoint, AnOptimizerAndARateOfAProgramLoadThemselves) {
  const TemporaryFolder folder;
  const auto kind = kind_of<OwnSgd>("", torch::optim::SGDOptions(0.1).momentum(0.9));
  Training saved(kind), loaded(kind);
  OwnSgd* const own = static_cast<OwnSgd*>(loaded.optimizer.get());
  for (int number = 0; number < 3; ++number) saved.step(number);
  saved.save(folder / "c");
  own->param_groups()[0].options().set_lr(0.25);
  own->refuses = true;
  EXPECT_THAT(failure([&] { loaded.load(folder / "c"); }), HasSubstr("it is not mine"));
  EXPECT_EQ(own->param_groups()[0].options().get_lr(), 0.25);
  EXPECT_TRUE(own->state().empty());
  own->refuses = false;
  loaded.load(folder / "c");
  EXPECT_EQ(own->loads, 2);
  expect_equal_tensors(loaded.values(), saved.values());

  OwnRate rate{.text = "halved"};
  const Checkpoint checkpoint{.model = *saved.model, .rate = rate};
  checkpoint.save(folder / "good");
  rate.text = "lost";
  checkpoint.save(folder / "bad");
  checkpoint.load(folder / "good");
  EXPECT_EQ(rate.text, "halved");
  EXPECT_THAT(failure([&] { checkpoint.load(folder / "bad"); }), HasSubstr("expected 'halved'"));
  EXPECT_EQ(rate.text, "halved");
}

/// A model of many tensors, each of which has two names.
struct Many : torch::nn::Module {
  explicit Many(int tensors) {
    auto& other = *register_module("other", std::make_shared<torch::nn::Module>());
    for (int i = 0; i < tensors; ++i) {
      const auto name = std::to_string(i);
      const auto& own = register_parameter(name, torch::full({1}, static_cast<float>(i)));
      own.mutable_grad() = torch::ones({1});
      other.register_parameter(name, own);
    }
  }
};

TEST(Checkpoint, ManyTensorsTakeLinearTime) {
  const TemporaryFolder folder;
  // Of the processor: a busy disk may take any time.
  const auto seconds = [&](int tensors) {
    Many model(tensors);
    torch::optim::AdamW optimizer(parameters(model));
    optimizer.step();
    const Checkpoint checkpoint{.model = model, .optimizer = optimizer};
    const auto begin = std::clock();
    checkpoint.save(folder / "c");
    checkpoint.load(folder / "c");
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double few = std::min(seconds(250), seconds(250));
  // 16 times as many tensors: 16 times the time, and 256 times if it is quadratic.
  EXPECT_LT(seconds(4000), 64 * few);
}

TEST(Checkpoint, WhatCannotBeSavedIsAnErrorAndNoFile) {
  const TemporaryFolder folder;
  Training training;
  Training other;
  EXPECT_THAT(failure([&] { save_checkpoint(folder / "c", *training.model, *other.optimizer); }),
              AllOf(HasSubstr((folder / "c").string()), HasSubstr("not in the model")));
  training.optimizer->param_groups()[0].options().set_lr(std::numeric_limits<double>::infinity());
  EXPECT_THAT(
      failure([&] { training.save(folder / "c"); }),
      AllOf(HasSubstr((folder / "c").string()), HasSubstr("optimizer/0/lr: cannot store inf")));
  const Checkpoint checkpoint{.model = *training.model};
  EXPECT_THAT(failure([&] { checkpoint.save(folder / "c", {.epoch = -1}); }),
              HasSubstr("epoch: got -1, expected 0 or more"));
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
  /// The error of loading, which must not have changed the model and the optimizer.
  std::string error() {
    safetensors::write(path, content);
    Training training;
    training.step(5);
    training.save(folder / "before");
    const std::string text = failure([&] { training.load(path); });
    training.save(folder / "after");
    EXPECT_EQ(testing::content(folder / "after"), testing::content(folder / "before"));
    EXPECT_THAT(text, HasSubstr(path.string() + ": "));
    return text;
  }

  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "c";
  safetensors::Content content;
};

TEST_F(Spoilt, ATensorIsNamed) {
  const auto good = content;
  const auto buffer = "optimizer/first.weight/momentum_buffer";
  const auto error_with = [&](const char* name, const at::Tensor& tensor) {
    content = good;
    content.tensors[name] = tensor;
    if (!tensor.defined()) content.tensors.erase(name);
    return error();
  };
  EXPECT_THAT(error_with("second.weight", torch::zeros({6, 3})),
              HasSubstr("tensor 'second.weight': expected Float [3, 6], found Float [6, 3]"));
  EXPECT_THAT(error_with("norm.running_var", torch::ones({6}, torch::kDouble)),
              HasSubstr("tensor 'norm.running_var': expected Float [6], found Double [6]"));
  EXPECT_THAT(error_with("first.bias", {}),
              HasSubstr("tensor 'first.bias': is in the model, but not in the file"));
  EXPECT_THAT(error_with("third.weight", torch::zeros({1})),
              HasSubstr("tensor 'third.weight': is in the file, but not in the model"));
  EXPECT_THAT(
      error_with(buffer, torch::zeros({5})),
      AllOf(HasSubstr(buffer),
            HasSubstr("expected Float [6, 4] as parameter 'first.weight', found Float [5]")));
  EXPECT_THAT(error_with(buffer, {}), HasSubstr(std::string(buffer) + "\" is missing"));
}

TEST_F(Spoilt, AFlippedBitAnywhereIsAnError) {
  const auto bytes = testing::content(path);
  Training training;
  training.step(5);
  const auto before = training.values();
  for (std::size_t byte = 0; byte < bytes.size(); byte += byte < 64 ? 1 : 7) {
    auto changed = bytes;
    changed[byte] = static_cast<char>(changed[byte] ^ (1 << byte % 8));
    std::ofstream(path, std::ios::binary) << changed;
    ASSERT_THAT(failure([&] { training.load(path); }), HasSubstr(path.string() + ": "))
        << "byte " << byte << " of " << bytes.size();
  }
  expect_equal_tensors(training.values(), before);
  std::ofstream(path, std::ios::binary) << bytes;
  training.load(path);
}

TEST_F(Spoilt, ABadDescriptionOfTheOptimizerAndBadMetadataAreErrors) {
  const std::string text = content.metadata["optimizer"];
  const auto good = nlohmann::json::parse(text);
  const auto error_with = [&](const std::string& description) {
    content.metadata["optimizer"] = description;
    return error();
  };
  auto other_field = good;
  other_field["state"]["first.weight"]["momentum_buffer"] = "x";
  for (const std::string& description :
       {std::string("{"), std::string("[]"), std::string("{}"), std::string("null"),
        text.substr(0, text.size() / 2), other_field.dump()})
    EXPECT_THAT(error_with(description), HasSubstr("optimizer: ")) << description;
  for (const std::size_t depth : {33, 1'000'000})
    EXPECT_THAT(error_with(std::string(depth, '[')),
                HasSubstr("optimizer: expected at most 32 levels of nesting, found more"));
  EXPECT_THAT(error_with(std::string(32, '[') + std::string(32, ']')), Not(HasSubstr("levels")));
  // An option of another kind or name.
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = good;
    changed["groups"][0]["options"][key] = value;
    return error_with(changed.dump());
  };
  EXPECT_THAT(with("lr", "x"), HasSubstr("optimizer: "));
  EXPECT_THAT(with("lr", 1), HasSubstr("optimizer: "));
  EXPECT_THAT(with("nesterov", 0.5), HasSubstr("optimizer: "));
  EXPECT_THAT(with("lr", nullptr), HasSubstr("optimizer: "));
  const auto own = "group 0: expected the options dampening, lr, momentum, nesterov, weight_decay";
  EXPECT_THAT(with("rl", 0.1), HasSubstr(lockstep::detail::concat(
                                   own, ", found dampening, lr, momentum, nesterov, rl, ")));
  auto without = good;
  without["groups"][0]["options"].erase("lr");
  EXPECT_THAT(error_with(without.dump()),
              HasSubstr(lockstep::detail::concat(own, ", found dampening, momentum, ")));
  content.metadata["optimizer"] = text;
  for (const char* epoch : {"", "x", "1x", "-1", "99999999999999999999"}) {
    content.metadata["epoch"] = epoch;
    EXPECT_THAT(error(), HasSubstr("epoch: expected a number"));
  }
  content.metadata["lockstep"] = "2";
  EXPECT_THAT(error(), HasSubstr("expected format version 1, found '2'"));
  content.metadata.erase("lockstep");
  EXPECT_THAT(error(), HasSubstr("expected a Lockstep checkpoint, found no 'lockstep'"));
}

}  // namespace
}  // namespace lockstep::testing
