#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/checkpoint.h"
#include "lockstep/model_files.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

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

TEST_F(Spoilt, ATensorIsNamed) {
  const auto good = content;
  const auto buffer = "optimizer/first.weight/momentum_buffer";
  const auto error_with = [&](const char* name, const at::Tensor& tensor) {
    content = good;
    tensor.defined() ? static_cast<void>(content.tensors[name] = tensor)
                     : static_cast<void>(content.tensors.erase(name));
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
  expect_same(training.values(), before);
  std::ofstream(path, std::ios::binary) << bytes;
  training.load(path);
}

TEST_F(Spoilt, ABadDescriptionIsAnError) {
  const std::string good = content.metadata["optimizer"];
  for (const std::string& text : {std::string("{"), std::string("[]"), std::string("{}"),
                                  std::string("null"), good.substr(0, good.size() / 2)}) {
    content.metadata["optimizer"] = text;
    EXPECT_THAT(error(), HasSubstr("optimizer: ")) << text;
  }
}

TEST_F(Spoilt, AnOptionOfAnotherNameOrKindIsNamed) {
  const auto good = nlohmann::json::parse(content.metadata["optimizer"]);
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = good;
    changed["groups"][0]["options"][key] = value;
    content.metadata["optimizer"] = changed.dump();
    return error();
  };
  EXPECT_THAT(with("lr", "x"),
              HasSubstr("group 0: option 'lr': expected a real number, found \"x\""));
  EXPECT_THAT(with("lr", 1), HasSubstr("option 'lr': expected a real number, found 1"));
  EXPECT_THAT(with("nesterov", 0.5), HasSubstr("option 'nesterov': expected boolean, found 0.5"));
  EXPECT_THAT(with("lr", nullptr), HasSubstr("optimizer: "));
  EXPECT_THAT(with("rl", 0.1), HasSubstr("option 'rl': is in the file, but not in the optimizer"));
  auto without = good;
  without["groups"][0]["options"].erase("lr");
  content.metadata["optimizer"] = without.dump();
  EXPECT_THAT(error(), HasSubstr("option 'lr': is in the optimizer, but not in the file"));
}

TEST_F(Spoilt, AFieldOfAnotherKindIsAnError) {
  auto description = nlohmann::json::parse(content.metadata["optimizer"]);
  description["state"]["first.weight"]["momentum_buffer"] = "x";
  content.metadata["optimizer"] = description.dump();
  EXPECT_THAT(error(), HasSubstr("optimizer: "));
}

TEST_F(Spoilt, ADescriptionThatWouldFillTheStackIsAnError) {
  for (const int depth : {33, 1'000'000}) {
    content.metadata["optimizer"] = std::string(static_cast<std::size_t>(depth), '[');
    EXPECT_THAT(error(), HasSubstr("optimizer: expected at most 32 levels of nesting, found more"));
  }
  content.metadata["optimizer"] = std::string(32, '[') + std::string(32, ']');
  EXPECT_THAT(error(), Not(HasSubstr("levels")));
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

}  // namespace
}  // namespace lockstep::testing
