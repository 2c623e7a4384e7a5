// Models that Python exports by torch.jit.script, and lists of named tensors, train as one process
// does. script_models.py exports the models.
#include <torch/script.h>

#include "lockstep/checkpoint.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/python.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;
using Tensors = std::vector<at::Tensor>;

Tensors tensors_in(const std::vector<NamedTensor>& named) {
  Tensors tensors;
  for (const auto& each : named) tensors.push_back(each.tensor);
  return tensors;
}

/// The files of script_models.py, written once for all tests.
class ScriptModel : public ::testing::TestWithParam<std::string> {
 public:
  static void SetUpTestSuite() {
    if (folder != nullptr) return;
    folder = std::make_unique<TemporaryFolder>();
    written = python("tests/train/script_models.py", {folder->path().string()});
  }
  void SetUp() override {
    if (written.is_missing()) GTEST_SKIP() << "no Python with torch: " << written.text;
    ASSERT_EQ(written.code, 0);
  }

  static const std::string& kind() { return GetParam(); }
  static bool is_resnet() { return kind() == "resnet"; }
  static torch::jit::Module load() {
    return torch::jit::load((*folder / (kind() + ".pt")).string());
  }
  static c10::Dict<c10::IValue, c10::IValue> python_state() {
    return read_torch_file(*folder / (kind() + "_state.pt")).toGenericDict();
  }

  /// The batch of all ranks.
  static at::Tensor batch(int step, int ranks) {
    const auto seed = static_cast<std::uint64_t>(100 + step);
    if (is_resnet()) return random({2 * ranks, 3, 6, 6}, seed, at::kDouble);
    return (random({2 * ranks, 6}, seed, at::kDouble) * 1000).to(at::kLong).remainder(20);
  }
  static at::Tensor loss(const c10::IValue& output, const at::Tensor& input) {
    if (is_resnet()) return (output.toTensor() - input.mean({1, 2, 3}).unsqueeze(1)).pow(2).mean();
    const auto logits = output.toTupleRef().elements()[0].toTensor();
    return torch::nn::functional::cross_entropy(logits.narrow(1, 0, 5).flatten(0, 1),
                                                input.narrow(1, 1, 5).flatten());
  }
  static std::unique_ptr<torch::optim::Optimizer> optimizer_of(const ModelView& model) {
    const auto parameters = tensors_in(model.parameters());
    // The transformer has sparse gradients, and LibTorch's momentum of these cannot be stored.
    if (!is_resnet()) return std::make_unique<torch::optim::Adagrad>(parameters, 0.02);
    return std::make_unique<SGD>(parameters, SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
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
    const auto optimizer = optimizer_of(model);
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      loss(model.forward({batch(step, ranks)}), batch(step, ranks)).backward();
      optimizer->step();
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

TEST_P(ScriptModel, TrainsInDistributedOptimizerThroughACheckpoint) {
  for (const int ranks : {2, 3}) {
    Tensors expected;
    on_ranks(1, [&](const Group&) { expected = train_alone(all_steps, ranks); });
    on_ranks(ranks, [&](const Group& world) {
      const auto path = *folder / ("checkpoint" + std::to_string(ranks) + ".safetensors");
      const auto train = [&](int begin, int end) {
        auto model = load();
        perturb(model, world.rank() + begin);
        const auto optimizer = optimizer_of(model);
        DistributedOptimizer distributed(*optimizer, model, world);
        const Checkpoint checkpoint{.model = model, .optimizer = *optimizer};
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

TEST_P(ScriptModel, HasPythonsNamesAndLoadsItsValues) {
  on_ranks(1, [&](const Group&) {
    auto model = load();
    const auto file = python_state();
    std::vector<std::string> names;
    for (const c10::IValue& name : file.at("parameters").toListRef()) {
      names.push_back(name.toStringRef());
    }
    std::vector<std::string> own;
    for (const auto& named : ModelView(model).parameters()) own.push_back(named.name);
    EXPECT_THAT(own, UnorderedElementsAreArray(names));
    load_state_dict(model, file.at("state"));
    const auto output = model.forward({file.at("example")});
    EXPECT_LT(distance(output.isTensor() ? output.toTensor()
                                         : output.toTupleRef().elements()[0].toTensor(),
                       file.at("output").toTensor()),
              1e-12);
  });
}

TEST_P(ScriptModel, HasItsSparseLayersFound) {
  if (is_resnet()) GTEST_SKIP() << "has none";
  on_ranks(2, [](const Group& world) {
    auto model = load();
    DistributedDataParallel ddp(model, world);
    const auto output = ddp(at::ones({1, 6}, at::kLong));
    output.toTupleRef().elements()[0].toTensor().sum().backward();
    for (const auto& named : ModelView(model).parameters()) {
      EXPECT_EQ(named.tensor.grad().is_sparse(), named.name == "tokens.weight") << named.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, ScriptModel, ::testing::Values("resnet", "transformer"),
                         [](const auto& test) { return test.param; });

/// A model without a class: w and b are named tensors, mean is a buffer.
struct Line {
  explicit Line(double value = 0.5) {
    for (auto* tensor : {&w, &b}) tensor->fill_(value).set_requires_grad(true);
  }
  ModelView view() const { return ModelView({{"w", w}, {"b", b}}, {{"mean", mean}}); }

  at::Tensor w = at::ones({4, 3}, at::kDouble);
  at::Tensor b = at::zeros({3}, at::kDouble);
  at::Tensor mean = at::full({4}, 0.25, at::kDouble);
};

TEST(NamedTensors, AreSavedAndLoaded) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& world) {
    Line saved(3);
    saved.mean.fill_(9);
    Checkpoint{.model = saved.view()}.save(folder / "line.safetensors", {}, world);
    Line loaded;
    Checkpoint{.model = loaded.view()}.load(folder / "line.safetensors", world);
    EXPECT_TRUE(torch::equal(loaded.w, saved.w));
    EXPECT_TRUE(torch::equal(loaded.mean, saved.mean));
  });
}

TEST(NamedTensors, AreChecked) {
  const Line line;
  EXPECT_THAT(refusal([&] {
                ModelView({{"w", line.w}, {"w", line.b}});
              }),
              HasSubstr("ModelView 'w': got the name twice"));
  EXPECT_THAT(refusal([&] { ModelView({{"", line.w}}); }), HasSubstr("a tensor without a name"));
  EXPECT_THAT(refusal([&] { ModelView({{"w", at::Tensor()}}); }), HasSubstr("undefined tensor"));
  on_ranks(2, [](const Group& world) {
    const Line own;
    const ModelView views[] = {own.view(), ModelView({{"w", own.w}})};
    EXPECT_THAT(refusal([&] { broadcast_parameters(views[world.rank()], world); }),
                HasSubstr("parameter b Double [3] on rank 0; nothing on rank 1"));
    EXPECT_THAT(refusal([&] {
                  const std::shared_ptr<torch::jit::Module> none;
                  DistributedDataParallel<torch::jit::Module> ddp(none, world);
                }),
                HasSubstr("got no model"));
    SGD sgd({own.w, own.b}, SGDOptions(0.1));
    EXPECT_THAT(refusal([&] { DistributedOptimizer optimizer(sgd, views[1], world); }),
                HasSubstr("is not a parameter of the model"));
    expect_usable(world);
  });
}

}  // namespace
}  // namespace lockstep::testing
