// A load restores everything, or changes nothing, whichever tensor it fails at and why.
#include <c10/core/InferenceMode.h>

#include "lockstep/early_stopping.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/learning_rate.h"
#include "lockstep/samplers.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
#include "parallel/reducer/model_state.h"
#include "tests/parallel/models.h"
#include "tests/train/failed_load.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using lockstep::detail::tensors_of;

/// Everything that a checkpoint keeps.
struct WholeRun {
  explicit WholeRun(const Group& group, int seed = 0)
      : world(group), generator(at::make_generator<at::CPUGeneratorImpl>(7 + world.rank())) {
    set_values(net, static_cast<std::uint64_t>(3 + seed));
    stopping.update(0.5 + seed);
    for (int number = 0; number <= seed + 1; ++number) step(number);
  }
  void step(int number) {
    net.forward(random({4, 4}, static_cast<std::uint64_t>(10 * number + world.rank())))
        .pow(2)
        .mean()
        .backward();
    of_first.step();
    of_second.step();
    net.zero_grad();
    rate.step();
    average.update();
    sampler.next(1);
    scaler.load_state({{"scale", at::scalar_tensor(1024.0 + number, at::kFloat)},
                       {"growth_tracker", at::scalar_tensor(number, at::kLong)}});
    at::randn({3}, generator);
  }
  Checkpoint checkpoint() {
    return {.model = net,
            .optimizer = adam,
            .rate = rate,
            .sampler = sampler,
            .strategy = both,
            .generator = generator,
            .extra = {{"average", average},
                      {"stopping", stopping},
                      {"further", stateful},
                      {"scaler", scaler}}};
  }
  AllValues values() {
    Values all;
    const auto add = [&](const std::string& prefix, const State& state) {
      for (const auto& [name, tensor] : state) all[prefix + name] = tensor.detach().clone();
    };
    for (const auto& [name, tensor] : tensors_of(net)) all[name] = tensor.detach().clone();
    add("optimizer/", StatefulOptimizer(adam, net).state());
    add("sampler/", sampler.state());
    add("strategy/", both.state());
    add("average/", average.state());
    add("stopping/", stopping.state());
    add("further/", stateful.state());
    add("scaler/", scaler.state());
    all["random"] = generator.get_state();
    return {all, rate.state() + std::to_string(adam.param_groups()[0].options().get_lr())};
  }

  Group world;
  Net net{5};
  torch::optim::Adam adam{net.first->parameters(), torch::optim::AdamOptions(0.01)};
  torch::optim::SGD further{net.second->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  DistributedOptimizer of_first{
      adam, net, world, {.strategy = TopK{.ratio = 0.3}, .optimized_only = true}};
  DistributedOptimizer of_second{further, net, world, {.optimized_only = true}};
  SeveralStateful both{std::vector<Stateful>{of_first, of_second}};
  LearningRate rate{adam, CosineDecay{.steps = 50}};
  MovingAverage average{net, {.decay = 0.5, .bias_correction = true, .average_buffers = true}};
  EarlyStopping stopping{{}};
  DistributedSampler sampler{40, world};
  StatefulOptimizer stateful{further, net};
  GradScaler scaler{world};
  at::Generator generator;
};

/// The name in an error about a tensor of a file: an object of the program, or the tensor.
std::string culprit_of(std::string name) {
  if (name.starts_with("sampler/")) return "sampler: ";
  if (name.starts_with("extra/")) {
    name.erase(0, name.find('/') + 1);
    return concat("extra '", name.substr(0, name.find('/')), "': ");
  }
  if (name.ends_with(".residual")) name.erase(name.rfind('.'));
  return name.substr(name.rfind('/') + 1);
}

/// Residuals that do not fit, and random states that are absent, are listed as changes instead.
bool is_no_error(const std::string& name, const std::string& fault) {
  return (name.find("/strategy/") != std::string::npos || name.ends_with("/random")) &&
         fault != "of a wrong dtype" && !(name.ends_with("/random") && fault != "missing");
}

SUITE_ON_RANKS(FailedLoad, 1, 2);

TEST_P(FailedLoad, OfACheckpointAtAnyTensor) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    const auto path = folder / "c";
    WholeRun(world, 2).checkpoint().save(path, {}, world);
    const auto good = safetensors::read(path);
    WholeRun run(world);
    const auto before = run.values();
    const auto expect_failure = [&](const std::string& what, const std::string& culprit) {
      world.barrier().wait();  // rank 0 has written the file
      const auto message = failure([&] { run.checkpoint().load(path, world); });
      EXPECT_THAT(message, AllOf(HasSubstr(path.string() + ": "), HasSubstr(culprit))) << what;
      expect_unchanged(run.values(), before, what);
      world.barrier().wait();
    };
    // Every fault of every tensor on one rank, a third of them on several.
    std::size_t number = 0;
    const auto is_left_out = [&] { return world.size() > 1 && number++ % 3 != 0; };
    for (const auto& [name, tensor] : good.tensors) {
      for (const auto& [fault, spoil] : file_faults) {
        if (is_no_error(name, fault) || is_left_out()) continue;
        auto content = good;
        spoil(content.tensors, name);
        if (world.rank() == 0) safetensors::write(path, content);
        expect_failure(concat(name, " is ", fault), culprit_of(name));
      }
    }
    if (world.rank() == 0) safetensors::write(path, good);
    world.barrier().wait();
    const safetensors::Reader reader(path);
    const auto bytes = content(path);
    world.barrier().wait();
    for (const auto& entry : reader.header().entries) {
      const auto first = bytes.size() - reader.value_bytes() + entry.begin;
      auto damaged = bytes;
      damaged[first] ^= 1;
      for (const auto& text : {damaged, bytes.substr(0, first)}) {
        if (is_left_out()) continue;
        if (world.rank() == 0) std::ofstream(path, std::ios::binary) << text;
        expect_failure(concat(entry.name, " of ", text.size(), " bytes"), "tensor '");
      }
    }
  });
}

at::Tensor expanded(const at::Tensor& like) {
  return at::zeros({1}, like.options().requires_grad(false)).expand(like.sizes());
}

TEST_P(FailedLoad, IntoATensorWhoseElementsShareMemory) {
  const TemporaryFolder folder;
  on_ranks(GetParam(), [&](const Group& world) {
    const auto path = folder / "c";
    CheckpointFolder numbered(folder / "numbered");
    WholeRun saved(world, 2);
    saved.checkpoint().save(path, {}, world);
    numbered.save(saved.checkpoint(), {}, world);
    WholeRun run(world);
    for (auto& [name, tensor] : tensors_of(run.net)) {
      if (tensor.numel() == 1) continue;
      const auto own = tensor.detach();
      // On the last rank only, but every rank fails.
      if (world.rank() == world.size() - 1) tensor.set_data(expanded(tensor));
      const auto before = run.values();
      const auto names_it = AllOf(HasSubstr(concat("tensor '", name, "': got a tensor whose ")),
                                  HasSubstr("register its contiguous() copy"));
      EXPECT_THAT(failure([&] { run.checkpoint().load(path, world); }), names_it);
      EXPECT_THAT(failure([&] { numbered.load_newest(run.checkpoint(), world); }), names_it);
      expect_unchanged(run.values(), before, name);
      if (world.size() == 1) {
        EXPECT_THAT(failure([&] { load_checkpoint(path, run.net, run.adam); }), names_it);
        expect_unchanged(run.values(), before, name);
        EXPECT_THAT(failure([&] { run.checkpoint().save(folder / "d"); }), names_it);
        EXPECT_THAT(failure([&] { run.checkpoint().save(folder / "d", {}, world); }), names_it);
        CheckpointWriter writer(world);
        EXPECT_THAT(failure([&] { writer.save(run.checkpoint(), folder / "d"); }), names_it);
        EXPECT_FALSE(std::filesystem::exists(folder / "d"));
      }
      tensor.set_data(own);
    }
    EXPECT_EQ(run.checkpoint().load(path, world).changes, "");
    expect_unchanged(run.values(), saved.values(), "without a fault");
  });
}

TEST(LoadedRun, GoesOnAsTheSavedOneOnEveryRank) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    on_ranks(ranks, [&](const Group& world) {
      WholeRun saved(world, 2), run(world);
      saved.checkpoint().save(folder / "c", {.epoch = 1, .notes = {{"seed", "7"}}}, world);
      const Resumed found = run.checkpoint().load(folder / "c", world);
      EXPECT_EQ(found.meta.epoch, 1);
      EXPECT_EQ(found.meta.notes.at("seed"), "7");
      EXPECT_EQ(found.changes, "");
      expect_unchanged(run.values(), saved.values(), "after the load");
      for (auto* each : {&saved, &run}) each->step(9);
      expect_unchanged(run.values(), saved.values(), "after a step");
    });
  }
}

TEST(FailedLoads, OfAStateDictAtAnyTensor) {
  const Net source(5);
  const std::vector<std::pair<const char*, std::function<c10::IValue(const at::Tensor&)>>> faults{
      {"is in the model, but not in the state dict", {}},
      {"found Float [7]", [](const at::Tensor&) { return at::zeros({7}); }},
      {"Short", [](const at::Tensor& t) { return t.to(at::kShort); }},
      {"found ComplexFloat", [](const at::Tensor& t) { return t.to(at::kComplexFloat); }},
      {"expected layout Strided, found Sparse",
       [](const at::Tensor& t) { return t.dim() == 0 ? t.view({1}).to_sparse() : t.to_sparse(); }},
      {"device meta", [](const at::Tensor& t) { return t.to(at::kMeta); }},
      {"found an undefined one", [](const at::Tensor&) { return at::Tensor(); }},
      {"expected a tensor, found Int", [](const at::Tensor&) { return c10::IValue(3); }}};
  Net net(5);
  const auto values = [&] {
    Values all;
    for (const auto& [name, tensor] : tensors_of(net)) all[name] = tensor.detach().clone();
    return std::pair(all, std::string());
  };
  for (const auto& [name, tensor] : tensors_of(source)) {
    for (const auto& [text, spoil] : faults) {
      auto dict = state_dict(source).toGenericDict();
      static_cast<void>(dict.erase(name));
      if (spoil) dict.insert(name, spoil(tensor.detach()));
      const auto before = values();
      EXPECT_THAT(failure([&] { load_state_dict(net, dict); }),
                  AllOf(HasSubstr(concat("tensor '", name, "': ")), HasSubstr(text)));
      expect_unchanged(values(), before, name);
    }
    // Targets into which nothing can be copied.
    const auto dict = state_dict(source);
    for (const char* reason : {"elements share memory", "inference tensor", "device meta"}) {
      if (tensor.numel() == 1 && std::string(reason) == "elements share memory") continue;
      std::vector<NamedTensor> targets;
      for (const auto& each : tensors_of(net)) {
        auto target = each.tensor.detach();
        if (each.name == name) {
          const c10::InferenceMode inference(std::string(reason) == "inference tensor");
          target = std::string(reason) == "device meta"             ? target.to(at::kMeta)
                   : std::string(reason) == "elements share memory" ? expanded(target)
                                                                    : target.clone();
        }
        targets.push_back({.name = each.name, .tensor = target});
      }
      const auto before = values();
      EXPECT_THAT(failure([&] { load_state_dict(ModelView(targets), dict); }),
                  AllOf(HasSubstr(concat("tensor '", name, "': ")), HasSubstr(reason)));
      expect_unchanged(values(), before, name);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
