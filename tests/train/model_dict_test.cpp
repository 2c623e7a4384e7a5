// load_state_dict() with names that differ from the model's.
#include <torch/nn.h>

#include <string>

#include "lockstep/model_files.h"
#include "tests/matchers.h"
#include "tests/train/checkpoint_failure.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using Dict = c10::impl::GenericDict;

/// The state of a Net with every value v, without one tensor, and with two others.
Dict changed_state(double v) {
  Net net;
  Dict dict(c10::AnyType::get(), c10::AnyType::get());
  const auto state = state_dict(net).toGenericDict();
  for (const auto& item : state) {
    if (item.key().toStringRef() == "second.bias") continue;
    dict.insert(item.key(), at::full_like(item.value().toTensor(), v));
  }
  dict.insert("third.weight", torch::ones({2}));
  dict.insert("fourth", 3);
  return dict;
}

TEST(ModelDict, LoadsTheNamesThatBothHave) {
  Net net;
  const auto before = net.second->bias.detach().clone();
  EXPECT_THAT(failure([&] { load_state_dict(net, changed_state(2)); }),
              HasSubstr("tensor 'second.bias': is in the model, but not in the state dict"));
  EXPECT_FALSE(net.unused.eq(2).any().item<bool>());
  const auto left = load_state_dict(net, changed_state(2), {.strict = false});
  EXPECT_THAT(left.missing, ElementsAre("second.bias"));
  EXPECT_THAT(left.unexpected, ElementsAre("fourth", "third.weight"));
  EXPECT_TRUE(torch::equal(net.second->bias, before));
  EXPECT_TRUE(net.first->weight.eq(2).all().item<bool>());
  EXPECT_TRUE(net.norm->running_mean.eq(2).all().item<bool>());
}

TEST(ModelDict, ChecksShapesAlsoWithoutStrict) {
  Net net(7);
  const auto before = net.unused.detach().clone();
  EXPECT_THAT(failure([&] { load_state_dict(net, changed_state(2), {.strict = false}); }),
              HasSubstr("tensor 'first.weight': expected Float [7, 4], found Float [6, 4]"));
  EXPECT_TRUE(torch::equal(net.unused, before));
  // Without the tensors that do not fit.
  const auto left =
      load_state_dict(net, changed_state(2), {.strict = false, .rename = [](const auto& name) {
                                                return name == "unused" ? name : std::string();
                                              }});
  EXPECT_EQ(left.missing.size(), 9U);
  EXPECT_THAT(left.unexpected, IsEmpty());
  EXPECT_TRUE(net.unused.eq(2).all().item<bool>());
}

TEST(ModelDict, RenamesAsInAWrappedModel) {
  Net net;
  Dict wrapped(c10::AnyType::get(), c10::AnyType::get());
  const auto state = state_dict(net).toGenericDict();
  for (const auto& item : state) {
    wrapped.insert("module." + item.key().toStringRef(), at::full_like(item.value().toTensor(), 4));
  }
  const auto left = load_state_dict(net, wrapped, {.rename = [](const std::string& name) {
                                      return name.substr(std::string("module.").size());
                                    }});
  EXPECT_THAT(left.missing, IsEmpty());
  EXPECT_THAT(left.unexpected, IsEmpty());
  EXPECT_TRUE(net.unused.eq(4).all().item<bool>());
  EXPECT_THAT(failure([&] {
                load_state_dict(net, wrapped, {.rename = [](const auto&) { return "unused"; }});
              }),
              HasSubstr("is renamed to 'unused', the name of another tensor of the state dict"));
}

}  // namespace
}  // namespace lockstep::testing
