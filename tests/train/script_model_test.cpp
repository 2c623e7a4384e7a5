// A model that Python exports by torch.jit.script, and lists of named tensors, train as one process
// does. script_model.py exports the model.
#include <torch/script.h>

#include "lockstep/checkpoint.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/python.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors tensors_in(const std::vector<NamedTensor>& named) {
  Tensors tensors;
  for (const auto& each : named) tensors.push_back(each.tensor);
  return tensors;
}

/// The files of script_model.py, written once for all tests.
class ScriptModel : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    if (folder != nullptr) return;
    folder = std::make_unique<TemporaryFolder>();
    written = python("tests/train/script_model.py", {folder->path().string()});
  }
  void SetUp() override {
    if (written.is_missing()) GTEST_SKIP() << "no Python with torch: " << written.text;
    ASSERT_EQ(written.code, 0);
  }

  static torch::jit::Module load() { return torch::jit::load((*folder / "model.pt").string()); }

  /// The batch of all ranks.
  static at::Tensor batch(int step, int ranks) {
    const auto seed = static_cast<std::uint64_t>(100 + step);
    return (random({2 * ranks, 6}, seed, at::kDouble) * 1000).to(at::kLong).remainder(20);
  }
  static at::Tensor logits_of(const c10::IValue& output) {
    return output.toTupleRef().elements()[0].toTensor();
  }
  static at::Tensor loss(const c10::IValue& output, const at::Tensor& input) {
    return torch::nn::functional::cross_entropy(logits_of(output).narrow(1, 0, 5).flatten(0, 1),
                                                input.narrow(1, 1, 5).flatten());
  }
  /// LibTorch's momentum of sparse gradients cannot be stored.
  static torch::optim::Adagrad optimizer_of(const ModelView& model) {
    return torch::optim::Adagrad(tensors_in(model.parameters()), 0.02);
  }
  /// Makes the values of this rank differ from rank 0's.
  static void perturb(const torch::jit::Module& model, int rank) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model.parameters()) parameter.mul_(1 + rank);
    for (const auto& buffer : model.buffers()) buffer.add_(rank);
  }

  /// Parameters and buffers after the steps in one process with the whole batches.
  static Tensors train_alone(int steps, int ranks) {
    auto model = load();
    auto optimizer = optimizer_of(model);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      loss(model.forward({batch(step, ranks)}), batch(step, ranks)).backward();
      optimizer.step();
    }
    return values_of(model);
  }
  static Tensors values_of(const ModelView& model) {
    auto tensors = tensors_in(model.parameters());
    for (const auto& buffer : tensors_in(model.buffers())) tensors.push_back(buffer);
    for (auto& tensor : tensors) tensor = tensor.detach().clone();
    return tensors;
  }
  static void expect_near(const Tensors& got, const Tensors& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(distance(got[i].to(at::kDouble), expected[i].to(at::kDouble)), 1e-12) << i;
    }
  }

  static inline std::unique_ptr<TemporaryFolder> folder;
  static inline Answer written;
};

constexpr int all_steps = 4;

TEST_F(ScriptModel, TrainsInDistributedOptimizerThroughACheckpoint) {
  for (const int ranks : {2, 3}) {
    Tensors expected;
    on_ranks(1, [&](const Group&) { expected = train_alone(all_steps, ranks); });
    on_ranks(ranks, [&](const Group& world) {
      const auto path = *folder / ("checkpoint" + std::to_string(ranks) + ".safetensors");
      const auto train = [&](int begin, int end) {
        auto model = load();
        perturb(model, world.rank() + begin);
        auto optimizer = optimizer_of(model);
        DistributedOptimizer distributed(optimizer, model, world);
        const Checkpoint checkpoint{.model = model, .optimizer = optimizer};
        if (begin > 0) {
          checkpoint.load(path, world);
        } else {
          auto original = load();
          load_state_dict(model, state_dict(original));
        }
        for (int step = begin; step < end; ++step) {
          const auto input = batch(step, ranks).narrow(0, 2 * world.rank(), 2);
          distributed.backward_and_update(loss(model.forward({input}), input));
        }
        checkpoint.save(path, {}, world);
        return values_of(model);
      };
      train(0, all_steps / 2);
      expect_near(train(all_steps / 2, all_steps), expected);
    });
  }
}

TEST_F(ScriptModel, HasPythonsNamesAndLoadsItsValues) {
  on_ranks(1, [&](const Group&) {
    auto model = load();
    const auto file = read_torch_file(*folder / "state.pt").toGenericDict();
    std::vector<std::string> names;
    for (const c10::IValue& name : file.at("parameters").toListRef()) {
      names.push_back(name.toStringRef());
    }
    std::vector<std::string> own;
    for (const auto& named : ModelView(model).parameters()) own.push_back(named.name);
    EXPECT_THAT(own, UnorderedElementsAreArray(names));
    load_state_dict(model, file.at("state"));
    EXPECT_LT(
        distance(logits_of(model.forward({file.at("example")})), file.at("output").toTensor()),
        1e-12);
  });
}

TEST_F(ScriptModel, HasItsSparseLayersFound) {
  on_ranks(2, [](const Group& world) {
    auto model = load();
    DistributedDataParallel ddp(model, world);
    logits_of(ddp(at::ones({1, 6}, at::kLong))).sum().backward();
    for (const auto& named : ModelView(model).parameters()) {
      EXPECT_EQ(named.tensor.grad().is_sparse(), named.name == "tokens.weight") << named.name;
    }
  });
}

TEST(NamedTensors, AreChecked) {
  const auto w = at::ones({4, 3}, at::kDouble).requires_grad_();
  const auto b = at::ones({3}, at::kDouble).requires_grad_();
  EXPECT_THAT(refusal([&] {
                ModelView({{"w", w}, {"w", b}});
              }),
              HasSubstr("ModelView 'w': got the name twice"));
  EXPECT_THAT(refusal([&] { ModelView({{"", w}}); }), HasSubstr("a tensor without a name"));
  EXPECT_THAT(refusal([&] { ModelView({{"w", at::Tensor()}}); }), HasSubstr("undefined tensor"));
  on_ranks(2, [&](const Group& world) {
    const ModelView views[] = {ModelView({{"w", w}, {"b", b}}), ModelView({{"w", w}})};
    EXPECT_THAT(refusal([&] { broadcast_parameters(views[world.rank()], world); }),
                HasSubstr("parameter b Double [3] on rank 0; nothing on rank 1"));
    EXPECT_THAT(refusal([&] {
                  const std::shared_ptr<torch::jit::Module> none;
                  DistributedDataParallel<torch::jit::Module> ddp(none, world);
                }),
                HasSubstr("got no model"));
    torch::optim::SGD sgd({w, b}, torch::optim::SGDOptions(0.1));
    EXPECT_THAT(refusal([&] { DistributedOptimizer optimizer(sgd, views[1], world); }),
                HasSubstr("is not a parameter of the model"));
    expect_usable(world);
  });
}

}  // namespace
}  // namespace lockstep::testing
