// A load of an optimizer, a strategy or an object of the program that fails changes nothing.

#include <nlohmann/json.hpp>

#include "lockstep/fused_optimizers.h"
#include "lockstep/learning_rate.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
#include "tests/parallel/models.h"
#include "tests/train/failed_load.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

TEST(FailedStateLoads, OfEachOptimizerAtAnyTensor) {
  const TemporaryFolder folder;
  const auto path = folder / "c";
  for (const auto& kind : kinds) {
    Training saved(kind, 5);
    for (int step = 0; step < 3; ++step) saved.step(step);
    saved.save(path);
    const auto good = safetensors::read(path);
    Training other(kind, 5);
    other.step(7);
    other.optimizer->param_groups()[0].options().set_lr(0.875);
    const auto values = [&] {
      return std::pair(StatefulOptimizer(*other.optimizer, *other.model).state(), std::string());
    };
    auto before = values();
    for (auto& [name, tensor] : before.first) tensor = tensor.clone();
    for (const auto& [name, tensor] : good.tensors) {
      if (!name.starts_with("optimizer/")) continue;
      for (const auto& [fault, spoil] : file_faults) {
        const bool is_number = std::string(kind.name).starts_with("Lbfgs") && tensor.dim() == 0;
        if (is_number && std::string(fault) == "of a wrong dtype") continue;
        auto content = good;
        spoil(content.tensors, name);
        safetensors::write(path, content);
        EXPECT_THAT(failure([&] { other.load(path); }), HasSubstr(concat('"', name, '"')))
            << kind.name << ": " << name << " is " << fault;
        expect_unchanged(values(), before, concat(kind.name, ": ", name, " is ", fault));
      }
    }
    // Python's form.
    const auto dict = state_dict(*saved.optimizer).toGenericDict();
    for (const auto& state : dict.at("state").toGenericDict()) {
      for (const auto& field : state.value().toGenericDict()) {
        for (const auto& wrong :
             {c10::IValue("x"), c10::IValue(at::zeros({2, 2, 2})), c10::IValue(at::Tensor()),
              c10::IValue(at::zeros({2}, at::kComplexFloat))}) {
          auto fields = state.value().toGenericDict().copy();
          fields.insert_or_assign(field.key(), wrong);
          auto states = dict.at("state").toGenericDict().copy();
          states.insert_or_assign(state.key(), fields);
          auto spoilt = dict.copy();
          spoilt.insert_or_assign("state", states);
          EXPECT_THAT(failure([&] { load_state_dict(*other.optimizer, spoilt); }),
                      HasSubstr("optimizer: "))
              << kind.name << ": " << field.key().toStringRef();
          expect_unchanged(values(), before, kind.name);
        }
      }
    }
  }
}

TEST(FailedStateLoads, OfAnOptimizerWithoutItsMasterParameterKeepsTheRate) {
  const TemporaryFolder folder;
  const auto path = folder / "c";
  torch::nn::LinearImpl model(2, 2);
  model.to(at::kBFloat16);
  FusedAdamW adamw(model.parameters(), torch::optim::AdamWOptions(0.25), LowPrecision::master);
  for (auto& parameter : model.parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  adamw.step();
  save_checkpoint(path, model, adamw);
  auto content = safetensors::read(path);
  adamw.param_groups()[0].options().set_lr(0.5);
  for (const std::string field : {"master_param", "exp_avg"}) {
    auto description = nlohmann::json::parse(content.metadata["optimizer"]);
    description["state"]["bias"].erase(field);
    content.metadata["optimizer"] = description.dump();
    safetensors::write(path, content);
    EXPECT_THAT(failure([&] { load_checkpoint(path, model, adamw); }),
                HasSubstr("parameter 'bias': expected " + field));
    EXPECT_EQ(adamw.param_groups()[0].options().get_lr(), 0.5);
  }
}

/// An object of a program, which does not check its state.
struct Unchecked {
  State state() const { return {{"a", values}}; }
  void load_state(const State& state) {
    if (kind == 1) throw std::out_of_range("no such name");
    values.copy_(state.at("a"));
    if (kind == 2) TORCH_CHECK(false, "it does not fit");
  }
  int kind = 0;
  at::Tensor values = at::zeros({3});
};

TEST(FailedStateLoads, OfAProgramsOwnObjectAreCheckpointErrors) {
  const TemporaryFolder folder;
  const auto path = folder / "c";
  Net net(5);
  Unchecked first, second;
  first.values.fill_(2);
  const Checkpoint checkpoint{.model = net, .sampler = first, .extra = {{"own", second}}};
  checkpoint.save(path);
  for (auto* own : {&first, &second}) {
    for (own->kind = 1; own->kind < 3; ++own->kind) {
      first.values.fill_(5);
      second.values.fill_(6);
      EXPECT_THAT(failure([&] { checkpoint.load(path); }),
                  AllOf(HasSubstr(own == &first ? "c: sampler: " : "c: extra 'own': "),
                        HasSubstr(own->kind == 1 ? "no such name" : "it does not fit")));
      EXPECT_EQ(first.values[0].item<float>(), 5);
      EXPECT_EQ(second.values[0].item<float>(), 6);
    }
    own->kind = 0;
  }
  checkpoint.load(path);
  EXPECT_EQ(first.values[0].item<float>(), 2);
}

TEST(FailedStateLoads, OfAScheduleThatThrowsChangeNothing) {
  const TemporaryFolder folder;
  Training saved, loaded;
  const auto checkpoint = [](const Training& of, LearningRate& rate) {
    return Checkpoint{.model = *of.model, .optimizer = *of.optimizer, .rate = rate};
  };
  LearningRate rate(*saved.optimizer, [](std::int64_t step) { return 1.0 + step; });
  rate.step();
  checkpoint(saved, rate).save(folder / "c");
  LearningRate throwing(*loaded.optimizer, [](std::int64_t step) {
    if (step > 0) throw std::runtime_error("beyond the schedule");
    return 3.0;
  });
  const auto before = loaded.values();
  const auto state = throwing.state();
  EXPECT_THROW(checkpoint(loaded, throwing).load(folder / "c"), std::runtime_error);
  EXPECT_THROW(throwing.load_state(rate.state()), std::runtime_error);
  expect_equal_tensors(loaded.values(), before);
  EXPECT_EQ(throwing.state(), state);
  EXPECT_NEAR(loaded.optimizer->param_groups()[0].options().get_lr(), 0.3, 1e-12);
}

SUITE_ON_RANKS(FailedStateLoad, 1, 2);

TEST_P_ON_RANKS(FailedStateLoad, OfStrategiesAndSeveralObjectsAtAnyTensor) {
  const auto copy_of = [](State state) {
    for (auto& [name, tensor] : state) tensor = tensor.clone();
    return state;
  };
  const auto check = [&](const auto& object, const State& good, const std::string& what) {
    const State before = copy_of(object.state());
    for (const auto& [name, tensor] : good) {
      for (const auto& [fault, spoil] : file_faults) {
        State state = good;
        spoil(state, name);
        const std::string why = concat(what, ": ", name, " is ", fault);
        EXPECT_THROW(object.load_state(state), Error) << why;
        expect_unchanged({object.state(), ""}, {before, ""}, why);
      }
    }
  };
  for (const Strategy& strategy :
       {Strategy(TopK{.ratio = 0.3}), Strategy(Int8{}), Strategy(PowerSgd{.rank = 1})}) {
    const auto trained = [&](std::uint64_t seed) {
      auto model = std::make_shared<Mlp>();
      set_values(*model, seed);
      auto ddp = std::make_shared<DistributedDataParallel<Mlp>>(
          model, world,
          DataParallelOptions{.buckets = {.first = 0, .rest = 0}, .strategy = strategy});
      (*ddp)(random({2, 7}, seed)).pow(2).mean().backward();
      return ddp;
    };
    const auto first = trained(1), second = trained(2);
    check(Stateful(*first), copy_of(second->state()), strategy.text());
    torch::nn::LinearImpl layer(2, 2);
    MovingAverage average(layer), other_average(layer);
    const SeveralStateful several({average, *first});
    const auto of_both = copy_of(SeveralStateful({other_average, *second}).state());
    average.update();
    check(several, of_both, "SeveralStateful");
  }
}

}  // namespace
}  // namespace lockstep::testing
