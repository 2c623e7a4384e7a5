// A model of plain batch norms, converted: whoever holds them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/sync_batch_norm.h"
#include "tests/nn/whole_batch.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
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

TEST(Convert, ReachesEveryHolder) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](const Group& world) {
      Holders plain, model;
      EXPECT_EQ(convert_sync_batchnorm(model, world), norms_held);
      const auto whole = Holders::batch(4 * world.size(), 5);
      EXPECT_LT(deviation(on_part(model, whole, world), part_of_whole(plain, whole, world)), 1e-10);
      for (const auto& buffer : model.named_buffers()) {
        const auto expected = plain.named_buffers()[buffer.key()].to(at::kDouble);
        EXPECT_LT(deviation(buffer.value(), expected), 1e-10) << buffer.key();
      }
      // Each layer counts: without conversion it gives something else.
      if (world.size() > 1) {
        Holders local;
        EXPECT_GT(deviation(on_part(local, whole, world), part_of_whole(plain, whole, world)),
                  1e-3);
      }
    });
  }
}

TEST(Convert, KeepsTensorsNamesAndFlags) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Holders>();
    model->deep->eval();
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto text = detail::concat(*model);
    std::vector<const void*> before;
    for (const auto& tensor : model->parameters()) before.push_back(tensor.unsafeGetTensorImpl());
    for (const auto& tensor : model->buffers()) before.push_back(tensor.unsafeGetTensorImpl());
    const auto names = model->named_parameters().keys();
    convert_sync_batchnorm(*model, world);
    std::vector<const void*> after;
    for (const auto& tensor : model->parameters()) after.push_back(tensor.unsafeGetTensorImpl());
    for (const auto& tensor : model->buffers()) after.push_back(tensor.unsafeGetTensorImpl());
    EXPECT_EQ(after, before);
    EXPECT_EQ(model->named_parameters().keys(), names);
    EXPECT_EQ(detail::concat(*model), text);
    EXPECT_FALSE(model->deep->is_training());
    EXPECT_TRUE(model->first->is_training());
    const auto old = model->first->weight.detach().clone();
    model->forward(Holders::batch(3, 1)).pow(2).sum().backward();
    sgd.step();
    EXPECT_FALSE(at::equal(model->first->weight, old));
  });
}

TEST(Convert, OutlivesToAndLoad) {
  on_ranks(2, [](const Group& world) {
    Holders plain;
    auto model = std::make_shared<Holders>();
    model->to(at::kFloat);
    convert_sync_batchnorm(*model, world);
    model->to(at::kDouble);
    std::stringstream file;
    {
      torch::serialize::OutputArchive archive;
      plain.save(archive);
      archive.save_to(file);
    }
    torch::load(model, file);
    const auto whole = Holders::batch(4, 5);
    EXPECT_LT(deviation(on_part(*model, whole, world), part_of_whole(plain, whole, world)), 1e-10);
    // A converted model is saved as a plain one.
    std::stringstream other;
    torch::save(model, other);
    torch::serialize::InputArchive archive;
    archive.load_from(other);
    Holders loaded;
    loaded.load(archive);
    EXPECT_TRUE(at::equal(loaded.first->running_mean, model->first->running_mean));
  });
}

TEST(Convert, HoldsWithoutGradModeToo) {
  on_ranks(2, [](const Group& world) {
    const auto whole = Holders::batch(4, 5);
    for (const bool inference : {false, true}) {
      Holders plain, model;
      convert_sync_batchnorm(model, world);
      const torch::NoGradGuard no_grad;
      std::optional<c10::InferenceMode> mode;
      if (inference) mode.emplace();
      EXPECT_LT(deviation(on_part(model, whole, world), part_of_whole(plain, whole, world)), 1e-10);
    }
  });
}

TEST(Convert, OfACloneIsAnother) {
  on_ranks(2, [](const Group& world) {
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
  });
}

TEST(Convert, TwiceTakesTheLastGroup) {
  on_ranks(4, [](const Group& world) {
    const auto pair = world.split(world.rank() / 2);
    Holders plain, model;
    convert_sync_batchnorm(model, world);
    EXPECT_EQ(convert_sync_batchnorm(model, pair), norms_held);
    const auto whole = Holders::batch(6, static_cast<std::uint64_t>(world.rank() / 2));
    EXPECT_LT(deviation(on_part(model, whole, pair), part_of_whole(plain, whole, pair)), 1e-10);
  });
}

TEST(Convert, TakesSyncBatchNormsAndSharedLayersAlong) {
  on_ranks(2, [](const Group& world) {
    const auto alone = world.split(world.rank());
    nn::BatchNorm1d shared(4);
    nn::Sequential model(nn::Linear(3, 4), SyncBatchNorm(4, alone), shared, nn::Tanh(), shared);
    model->to(at::kDouble);
    set_values(*model, 1);
    nn::Sequential plain(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::BatchNorm1d(4), nn::Tanh(),
                         nn::BatchNorm1d(4));
    plain->to(at::kDouble);
    {
      const torch::NoGradGuard no_grad;
      const auto theirs = model->named_parameters();
      for (auto& item : plain->named_parameters()) item.value().copy_(theirs[item.key()]);
    }
    EXPECT_EQ(convert_sync_batchnorm(*model, world), 2U);
    const auto whole = random({6, 3}, 9, at::kDouble);
    EXPECT_LT(deviation(on_part(*model, whole, world), part_of_whole(*plain, whole, world)), 1e-10);
  });
}

TEST(Convert, LeavesEvaluationLocal) {
  on_ranks(2, [](const Group& world) {
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
  });
}

TEST(Convert, LeavesOtherModelsAlone) {
  on_ranks(2, [](const Group& world) {
    Holders converted, plain, reference;
    const auto x = Holders::batch(3, static_cast<std::uint64_t>(world.rank()));
    const auto expected = reference.forward(x);
    convert_sync_batchnorm(converted, world);
    EXPECT_TRUE(at::equal(plain.forward(x), expected));
    expect_usable(world);
  });
}

TEST(Convert, OfNoBatchNormIsNothing) {
  on_ranks(2, [](const Group& world) {
    nn::Sequential model(nn::Linear(3, 4), nn::LayerNorm(nn::LayerNormOptions({4})),
                         nn::InstanceNorm1d(4));
    EXPECT_EQ(convert_sync_batchnorm(*model, world), 0U);
  });
}

TEST(Convert, LeavesItToLibTorchToRefuseOneValueAChannel) {
  on_ranks(2, [](const Group& world) {
    nn::BatchNorm1d model(3);
    convert_sync_batchnorm(*model, world);
    EXPECT_THROW(model(at::ones({1, 3})), c10::Error);
    SyncBatchNorm takes_it(3, world);
    takes_it(at::ones({1, 3}));
    EXPECT_NE(refusal([&] { model(at::ones({4, 3}, at::kDouble)); }), "");
    EXPECT_THAT(refusal([&] {
                  model(at::ones({4, 5}));
                }),
                HasSubstr("expected 3 channels, as running_mean has"));
    EXPECT_THROW(model(at::ones({4, 3, 1, 1})), c10::Error);
    expect_usable(world);
  });
}

TEST(Convert, OfDifferentModelsIsRefusedOnEveryRank) {
  on_ranks(3, [](const Group& world) {
    nn::Sequential model(nn::BatchNorm1d(3),
                         nn::BatchNorm1d(nn::BatchNorm1dOptions(3).eps(world.rank() == 1 ? 1 : 2)));
    EXPECT_THAT(refusal([&] { convert_sync_batchnorm(*model, world); }),
                AllOf(HasSubstr("layer 1 torch::nn::BatchNorm1d(3, eps=2"),
                      HasSubstr("on ranks 0, 2"), HasSubstr("eps=1"), HasSubstr("on rank 1")));
    expect_usable(world);
    // Nothing was converted: this would wait for the others.
    if (world.rank() == 1) model->forward(at::ones({2, 3}));
  });
}

TEST(Convert, FindsRanksInDifferentLayers) {
  on_ranks(2, [](const Group& world) {
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
    EXPECT_THAT(refusal(backward), HasSubstr("another rank is in another layer's backward"));
    expect_usable(world);
  });
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
