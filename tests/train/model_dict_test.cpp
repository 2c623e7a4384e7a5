// load_state_dict() with names that differ from the model's.

#include "lockstep/model_files.h"
#include "lockstep/several_optimizers.h"
#include "parallel/reducer/model_state.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using Dict = c10::impl::GenericDict;

/// The state of a Net with every value 2, without one tensor, and with two others.
Dict changed_state() {
  const Net net;
  Dict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : detail::tensors_of(net))
    if (name != "second.bias") dict.insert(name, at::full_like(tensor, 2));
  dict.insert("third.weight", torch::ones({2}));
  dict.insert("fourth", 3);
  return dict;
}

TEST(ModelDict, LoadsTheNamesThatBothHave) {
  Net net;
  const auto before = net.second->bias.detach().clone();
  const auto left = load_state_dict(net, changed_state(), {.strict = false});
  EXPECT_THAT(left.missing, ElementsAre("second.bias"));
  EXPECT_THAT(left.unexpected, ElementsAre("fourth", "third.weight"));
  EXPECT_TRUE(torch::equal(net.second->bias, before));
  EXPECT_TRUE(net.first->weight.eq(2).all().item<bool>());
  EXPECT_TRUE(net.norm->running_mean.eq(2).all().item<bool>());
}

TEST(ModelDict, ChecksShapesAlsoWithoutStrictAndRenamesAsInAWrappedModel) {
  Net net(7);
  const auto unused = net.unused.detach().clone();
  EXPECT_THAT(failure([&] { load_state_dict(net, changed_state(), {.strict = false}); }),
              HasSubstr("tensor 'first.weight': expected Float [7, 4], found Float [6, 4]"));
  EXPECT_TRUE(torch::equal(net.unused, unused));
  // Without the tensors that do not fit.
  const auto only_unused = [](const auto& name) { return name == "unused" ? name : ""; };
  auto left = load_state_dict(net, changed_state(), {.strict = false, .rename = only_unused});
  EXPECT_EQ(left.missing.size(), 9U);
  EXPECT_THAT(left.unexpected, IsEmpty());
  EXPECT_TRUE(net.unused.eq(2).all().item<bool>());

  std::map<std::string, at::Tensor> wrapped;
  for (const auto& [name, tensor] : detail::tensors_of(net))
    wrapped["module." + name] = at::full_like(tensor, 4);
  const auto unwrap = [](const std::string& name) { return name.substr(7); };
  left = load_state_dict(net, wrapped, {.rename = unwrap});
  EXPECT_THAT(left.missing, IsEmpty());
  EXPECT_THAT(left.unexpected, IsEmpty());
  EXPECT_TRUE(net.unused.eq(4).all().item<bool>());
  const auto all_alike = [](const std::string&) { return "unused"; };
  EXPECT_THAT(failure([&] { load_state_dict(net, wrapped, {.rename = all_alike}); }),
              HasSubstr("is renamed to 'unused', the name of another tensor of the state dict"));
}

// Files of models that have a parameter, a layer or a buffer under two names.

/// Tied models have one layer, one weight and one buffer under two names each.
struct Twofold : torch::nn::Module {
  explicit Twofold(double value, bool tied = true) {
    const auto second = [&](const at::Tensor& tensor) {
      return tied ? tensor : tensor.detach().clone().requires_grad_(tensor.requires_grad());
    };
    register_module("layer", layer);
    if (tied)
      register_module("again", layer);
    else
      register_module("again", torch::nn::BatchNorm1d(3));
    weight = register_parameter("weight", at::zeros({2, 3}));
    register_parameter("tied", second(weight));
    scale = register_buffer("scale", at::zeros({3}));
    register_buffer("same_scale", second(scale));
    fill(value);
  }
  void fill(double value) {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : tensors())
      if (tensor.is_floating_point())
        tensor.copy_(at::arange(tensor.numel()).view_as(tensor) + value);
  }
  std::vector<NamedTensor> tensors() const { return detail::tensors_of(*this); }
  torch::nn::BatchNorm1d layer{3};
  at::Tensor weight, scale;
};

void expect_equal(const Twofold& got, const Twofold& expected) {
  const auto a = got.tensors(), b = expected.tensors();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
}

std::unique_ptr<torch::optim::Optimizer> stepped_adamw(Twofold& model) {
  auto adamw = std::make_unique<torch::optim::AdamW>(lockstep::parameters(model), 0.1);
  (model.weight.sum() + model.layer->weight.pow(2).sum()).backward();
  adamw->step();
  return adamw;
}

TEST(TiedModel, IsStoredOnceUnderBothNames) {
  const TemporaryFolder folder;
  Twofold saved(1);
  const auto adamw = stepped_adamw(saved);
  save_checkpoint(folder / "c", saved, *adamw);
  const auto content = safetensors::read(folder / "c");
  for (const auto& [second, first] : {std::pair("again.weight", "layer.weight"),
                                      {"again.running_mean", "layer.running_mean"},
                                      {"tied", "weight"},
                                      {"same_scale", "scale"}}) {
    EXPECT_FALSE(content.tensors.contains(second)) << second;
    EXPECT_TRUE(content.tensors.contains(first)) << first;
    EXPECT_EQ(content.metadata.at(std::string("alias.") + second), first);
  }
  Twofold loaded(5);
  torch::optim::AdamW other(lockstep::parameters(loaded), 0.3);
  load_checkpoint(folder / "c", loaded, other);
  expect_equal(loaded, saved);
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.1);
  // Without ties, each name has its own tensor.
  Twofold untied(7, false);
  Checkpoint{.model = untied}.load(folder / "c");
  expect_equal(untied, saved);
}

TEST(TiedModel, LoadsAFileThatHasBothNamesUnlessTheyHaveOtherValues) {
  const TemporaryFolder folder;
  for (const bool has_nan : {false, true}) {
    const Twofold untied(1, false);
    Twofold loaded(5);
    for (const auto& [name, tensor] : untied.tensors())
      if (has_nan && (name == "weight" || name == "tied")) tensor.detach()[1][2] = NAN;
    Checkpoint{.model = untied}.save(folder / "both");
    Checkpoint{.model = loaded}.load(folder / "both");
    if (!has_nan) expect_equal(loaded, untied);
    EXPECT_EQ(loaded.weight[1][2].isnan().item<bool>(), has_nan);  // NaN in both is no difference
  }
  for (const char* name : {"tied", "again.running_var", "same_scale", "again.weight"}) {
    Twofold untied(1, false);
    for (const auto& each : untied.tensors())
      if (each.name == name) each.tensor.detach().flatten()[1].add_(1e-6);
    Checkpoint{.model = untied}.save(folder / "c");
    Twofold loaded(5);
    const auto message = failure([&] { Checkpoint{.model = loaded}.load(folder / "c"); });
    EXPECT_THAT(message, AllOf(HasSubstr(std::string("tensor '") + name + "': expected the values"),
                               HasSubstr("one tensor under both names")));
    expect_equal(loaded, Twofold(5));
    EXPECT_THAT(failure([&] { load_state_dict(loaded, safetensors::read(folder / "c").tensors); }),
                HasSubstr("one tensor under both names"));
    expect_equal(loaded, Twofold(5));
  }
  auto content = safetensors::read(folder / "c");
  content.metadata["alias.third"] = "fourth";
  safetensors::write(folder / "c", content);
  Twofold loaded(5);
  EXPECT_THAT(failure([&] { Checkpoint{.model = loaded}.load(folder / "c"); }),
              HasSubstr("alias.third: expected the name of a tensor, found 'fourth'"));
}

TEST(TiedModel, LoadsAStateDictWithOneOfTheNamesOrOfItsOwnTensors) {
  const Twofold source(1);
  for (const bool second : {false, true}) {
    std::map<std::string, at::Tensor> dict;
    const auto tensors = source.tensors();
    for (const auto& [name, tensor] : tensors) dict.emplace(name, tensor.detach());
    for (const char* name : {"weight", "scale", "layer.bias"})
      if (second) dict.erase(name);
    for (const char* name : {"tied", "same_scale", "again.bias"})
      if (!second) dict.erase(name);
    Twofold loaded(5);
    load_state_dict(loaded, dict);
    expect_equal(loaded, source);
    dict.erase(second ? "tied" : "weight");
    EXPECT_THAT(failure([&] { load_state_dict(loaded, dict); }),
                HasSubstr("': is in the model, but not in the state dict"));
  }
  // A dict that exchanges two tensors of the model.
  using Tensors = std::map<std::string, at::Tensor>;
  const auto a = at::full({2}, 1.0), b = at::full({2}, 2.0);
  load_state_dict(ModelView({{"a", a}, {"b", b}}), Tensors{{"a", b}, {"b", a}});
  EXPECT_EQ(a[0].item<float>(), 2);
  EXPECT_EQ(b[0].item<float>(), 1);
  // Values that overlap with the tensor which they are for.
  const auto memory = at::arange(5.0);
  load_state_dict(ModelView({{"first", memory.narrow(0, 0, 4)}}),
                  Tensors{{"first", memory.narrow(0, 1, 4)}});
  EXPECT_TRUE(at::equal(memory, at::tensor({1.0, 2.0, 3.0, 4.0, 4.0}).to(memory.dtype())));
}

TEST(TiedModel, IsNotSavedWithAnOptimizerThatHasAParameterTwice) {
  const TemporaryFolder folder;
  Twofold model(1);
  torch::optim::AdamW twice(model.parameters(), 0.1);
  const auto refused = AllOf(HasSubstr("got parameter 'weight' = 'tied' twice, as #0 and #1 of"),
                             HasSubstr("lockstep::parameters(model)"));
  const Checkpoint checkpoint{.model = model, .optimizer = twice};
  EXPECT_THAT(refusal([&] { checkpoint.save(folder / "c"); }), refused);
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
  StatefulOptimizer stateful(twice, model);
  EXPECT_THAT(refusal([&] { stateful.state(); }), refused);
  EXPECT_THAT(refusal([&] { state_dict(twice); }), HasSubstr("twice, as #0 and #1"));
  const auto adamw = stepped_adamw(model);
  save_checkpoint(folder / "c", model, *adamw);
  Twofold loaded(5);
  torch::optim::AdamW other(loaded.parameters(), 0.1);
  EXPECT_THAT(refusal([&] { load_checkpoint(folder / "c", loaded, other); }), refused);
  EXPECT_THAT(refusal([&] { load_state_dict(other, state_dict(*adamw)); }),
              HasSubstr("twice, as #0 and #1"));
  expect_equal(loaded, Twofold(5));
  on_ranks(2, [&](const Group& world) {
    EXPECT_THAT(refusal([&] { checkpoint.save(folder / "d", {}, world); }), refused);
    expect_usable(world);
  });
}

}  // namespace
}  // namespace lockstep::testing
