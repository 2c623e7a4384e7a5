// A model of plain batch norms, converted: whoever holds them.
#include <torch/library.h>

#include <sstream>

#include "tests/nn/whole_batch.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl()
      : conv(register_module("conv", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(4))) {}
  at::Tensor forward(const at::Tensor& x) { return x + torch::relu(norm(conv(x))); }
  nn::Conv2d conv;
  nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(Block);

/// Batch norms of every dimension, in every kind of holder.
struct Holders : nn::Module {
  Holders() {
    register_module("first", first);
    register_module("deep", deep);
    register_module("list", list);
    register_module("dict", dict);
    register_module("volume", volume);
    register_module("flat", flat);
    any = nn::AnyModule(nn::BatchNorm1d(5));
    register_module("any", any.ptr());
    to(at::kDouble);
    set_values(*this, 7);
  }
  at::Tensor forward(at::Tensor x) {
    x = deep->forward(torch::relu(first(x)));
    x = list[0]->as<nn::BatchNorm2d>()->forward(x);
    x = dict["norm"]->as<nn::BatchNorm2d>()->forward(x);
    x = volume(x.unsqueeze(-1)).squeeze(-1);
    return any.forward(flat(x.flatten(1)).tanh());
  }
  static at::Tensor batch(std::int64_t n, std::uint64_t seed) {
    return random({n, 4, 3, 3}, seed, at::kDouble);
  }

  nn::BatchNorm2d first{4};
  nn::Sequential deep{nn::Conv2d(nn::Conv2dOptions(4, 4, 1)),
                      nn::BatchNorm2d(4),
                      nn::ReLU(),
                      Block(),
                      Block(),
                      nn::BatchNorm2d(4)};
  nn::ModuleList list{nn::BatchNorm2d(nn::BatchNorm2dOptions(4).affine(false))};
  nn::ModuleDict dict{std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{
      {"norm", nn::BatchNorm2d(nn::BatchNorm2dOptions(4).track_running_stats(false)).ptr()}}};
  nn::BatchNorm3d volume{nn::BatchNorm3dOptions(4).affine(false).track_running_stats(false)};
  nn::Linear flat{36, 5};
  nn::AnyModule any;
};
constexpr std::size_t norms_held = 9;

/// This rank's part of what the model gives for the whole batch in one process.
template <class Model>
at::Tensor part_of_whole(Model& plain, const at::Tensor& whole, const Group& world) {
  return plain.forward(whole).detach().chunk(world.size())[static_cast<std::size_t>(world.rank())];
}

template <class Model>
at::Tensor on_part(Model& model, const at::Tensor& whole, const Group& world) {
  return model.forward(whole.chunk(world.size())[static_cast<std::size_t>(world.rank())]).detach();
}

/// The model on this rank's part gives what the other gives for the whole batch in one process.
template <class Model, class Plain>
void expect_as_whole(Model& model, Plain& plain, const at::Tensor& whole, const Group& world) {
  EXPECT_LT(deviation(on_part(model, whole, world), part_of_whole(plain, whole, world)), 1e-10);
}

enum class Mode { gradients, no_grad, inference };

TEST_ON_RANKS(Convert, ReachesEveryHolderInEveryMode, 1, 2, 3) {
  const auto whole = Holders::batch(4 * world.size(), 5);
  for (const auto mode : {Mode::gradients, Mode::no_grad, Mode::inference}) {
    Holders plain, model, local;
    EXPECT_EQ(convert_sync_batchnorm(model, world), norms_held);
    const at::AutoGradMode gradients(mode == Mode::gradients);
    std::optional<c10::InferenceMode> inference;
    if (mode == Mode::inference) inference.emplace();
    expect_as_whole(model, plain, whole, world);
    for (const auto& buffer : model.named_buffers()) {
      const auto expected = plain.named_buffers()[buffer.key()].to(at::kDouble);
      EXPECT_LT(deviation(buffer.value(), expected), 1e-10) << buffer.key();
    }
    // Each layer counts: without conversion it gives something else.
    EXPECT_TRUE(world.size() == 1 ||
                deviation(on_part(local, whole, world), part_of_whole(plain, whole, world)) > 1e-3);
  }
}

TEST_ON_RANKS(Convert, KeepsTensorsNamesAndFlags, 2) {
  auto model = std::make_shared<Holders>();
  model->deep->eval();
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const auto text = detail::concat(*model);
  const auto tensors = [&] {
    std::vector<const void*> all;
    for (const auto& tensor : model->parameters()) all.push_back(tensor.unsafeGetTensorImpl());
    for (const auto& tensor : model->buffers()) all.push_back(tensor.unsafeGetTensorImpl());
    return all;
  };
  const auto before = tensors();
  const auto names = model->named_parameters().keys();
  convert_sync_batchnorm(*model, world);
  EXPECT_EQ(tensors(), before);
  EXPECT_EQ(model->named_parameters().keys(), names);
  EXPECT_EQ(detail::concat(*model), text);
  EXPECT_FALSE(model->deep->is_training());
  EXPECT_TRUE(model->first->is_training());
  const auto old = model->first->weight.detach().clone();
  model->forward(Holders::batch(3, 1)).pow(2).sum().backward();
  sgd.step();
  EXPECT_FALSE(at::equal(model->first->weight, old));
}

TEST_ON_RANKS(Convert, OutlivesToAndLoad, 2) {
  auto plain = std::make_shared<Holders>(), model = std::make_shared<Holders>();
  model->to(at::kFloat);
  convert_sync_batchnorm(*model, world);
  model->to(at::kDouble);
  std::stringstream file, other;
  torch::save(plain, file);
  torch::load(model, file);
  expect_as_whole(*model, *plain, Holders::batch(4, 5), world);
  // A converted model is saved as a plain one.
  torch::save(model, other);
  auto loaded = std::make_shared<Holders>();
  torch::load(loaded, other);
  EXPECT_TRUE(at::equal(loaded->first->running_mean, model->first->running_mean));
}

TEST_ON_RANKS(Convert, OfACloneIsAnother, 2) {
  nn::Sequential model(
      nn::BatchNorm1d(nn::BatchNorm1dOptions(3)), nn::Linear(3, 3),
      nn::BatchNorm1d(nn::BatchNorm1dOptions(3).affine(false).track_running_stats(false)));
  model->to(at::kDouble);
  set_values(*model, 1);
  auto plain = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
  convert_sync_batchnorm(*model, world);
  auto clone = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
  const auto whole = random({6, 3}, 9, at::kDouble);
  const auto expected = part_of_whole(*plain, whole, world);
  EXPECT_LT(deviation(on_part(*model, whole, world), expected), 1e-10);
  EXPECT_GT(deviation(on_part(*clone, whole, world), expected), 1e-3);
  convert_sync_batchnorm(*clone, world);
  EXPECT_LT(deviation(on_part(*clone, whole, world), expected), 1e-10);
}

TEST_ON_RANKS(Convert, TwiceTakesTheLastGroup, 4) {
  const auto pair = world.split(world.rank() / 2);
  Holders plain, model;
  convert_sync_batchnorm(model, world);
  EXPECT_EQ(convert_sync_batchnorm(model, pair), norms_held);
  const auto whole = Holders::batch(6, static_cast<std::uint64_t>(world.rank() / 2));
  expect_as_whole(model, plain, whole, pair);
}

TEST_ON_RANKS(Convert, TakesSyncBatchNormsAndSharedLayersAlongAndNoOtherNorms, 2) {
  const auto alone = world.split(world.rank());
  nn::BatchNorm1d shared(4);
  nn::Sequential model(nn::Linear(3, 4), SyncBatchNorm(4, alone), shared, nn::Tanh(), shared);
  model->to(at::kDouble);
  set_values(*model, 1);
  nn::Sequential plain(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::BatchNorm1d(4), nn::Tanh(),
                       nn::BatchNorm1d(4));
  plain->to(at::kDouble);
  const auto theirs = model->named_parameters();
  for (const auto& item : plain->named_parameters())
    item.value().detach().copy_(theirs[item.key()].detach());
  EXPECT_EQ(convert_sync_batchnorm(*model, world), 2U);
  expect_as_whole(*model, *plain, random({6, 3}, 9, at::kDouble), world);
  nn::Sequential others(nn::Linear(3, 4), nn::LayerNorm(nn::LayerNormOptions({4})),
                        nn::InstanceNorm1d(4));
  EXPECT_EQ(convert_sync_batchnorm(*others, world), 0U);
}

TEST_ON_RANKS(Convert, LeavesEvaluationLocal, 2) {
  auto plain = std::make_shared<Holders>();
  auto model = std::make_shared<Holders>();
  convert_sync_batchnorm(*model, world);
  plain->eval();
  model->eval();
  if (world.rank() == 1) {  // nobody else is asked, without running statistics neither
    const auto x = Holders::batch(3, 2);
    EXPECT_TRUE(at::equal(model->forward(x), plain->forward(x)));
  }
  expect_usable(world);
}

TEST_ON_RANKS(Convert, LeavesItToLibTorchToRefuseOneValueAChannel, 2) {
  nn::BatchNorm1d model(3);
  convert_sync_batchnorm(*model, world);
  EXPECT_THROW(model(at::ones({1, 3})), c10::Error);
  SyncBatchNorm takes_it(3, world);
  takes_it(at::ones({1, 3}));
  EXPECT_NE(refusal([&] { model(at::ones({4, 3}, at::kDouble)); }), "");
  const auto five = at::ones({4, 5});
  EXPECT_THAT(refusal([&] { model(five); }), HasSubstr("expected 3 channels, as running_mean has"));
  EXPECT_THROW(model(at::ones({4, 3, 1, 1})), c10::Error);
  expect_usable(world);
}

TEST_ON_RANKS(Convert, OfDifferentModelsIsRefusedOnEveryRank, 3) {
  nn::Sequential model(nn::BatchNorm1d(3),
                       nn::BatchNorm1d(nn::BatchNorm1dOptions(3).eps(world.rank() == 1 ? 1 : 2)));
  EXPECT_THAT(refusal([&] { convert_sync_batchnorm(*model, world); }),
              AllOf(HasSubstr("layer 1 torch::nn::BatchNorm1d(3, eps=2"),
                    HasSubstr("on ranks 0, 2"), HasSubstr("eps=1"), HasSubstr("on rank 1")));
  expect_usable(world);
  // Nothing was converted: this would wait for the others.
  if (world.rank() == 1) model->forward(at::ones({2, 3}));
}

TEST_ON_RANKS(Convert, FindsRanksInDifferentLayers, 2) {
  nn::Sequential model(nn::BatchNorm1d(3), nn::BatchNorm1d(3));
  convert_sync_batchnorm(*model, world);
  const auto layer = [&](int i) {
    return model[static_cast<std::size_t>(i)]->as<nn::BatchNorm1d>();
  };
  auto x = random({4, 3}, 1);
  EXPECT_THAT(refusal([&] { layer(world.rank())->forward(x); }),
              AllOf(HasSubstr(detail::concat("SyncBatchNorm ", world.rank(), " rank ")),
                    HasSubstr("layer 1 of the model on rank 0; layer 2 on rank 1")));
  x.requires_grad_();
  const std::vector<at::Tensor> outputs{layer(0)->forward(x).pow(2).sum(),
                                        layer(1)->forward(x).pow(2).sum()};
  const auto backward = [&] { outputs[static_cast<std::size_t>(world.rank())].backward(); };
  expect_refused(world, "another rank is in another layer's backward", backward);
}

at::Tensor of_another_library(const at::Tensor& input, const std::optional<at::Tensor>&,
                              const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                              const std::optional<at::Tensor>&, bool, double, double, bool) {
  return input.clone();
}

TEST(Convert, IsRefusedWhereAnotherLibraryTookTheOperatorOver) {
  {
    torch::Library other(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__,
                         __LINE__);
    other.impl("batch_norm", TORCH_FN(of_another_library));
    on_ranks(2, [](const Group& world) {
      nn::BatchNorm1d model(3);
      EXPECT_THROW(convert_sync_batchnorm(*model, world), BackendUnavailable);
      expect_usable(world);
    });
  }
  on_ranks(2, [](const Group& world) {
    nn::BatchNorm1d model(3);
    EXPECT_EQ(convert_sync_batchnorm(*model, world), 1U);
  });
}

}  // namespace
}  // namespace lockstep::testing
