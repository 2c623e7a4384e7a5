// Fused optimizers with parameters of bfloat16 and float16.
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/model_files.h"
#include "parallel/update/optimizer_fields.h"
#include "tests/matchers.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing::low_precision {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;

constexpr LowPrecision modes[] = {LowPrecision::master, LowPrecision::stochastic,
                                  LowPrecision::kahan};

/// Parameters in other strides, of no elements, of an odd number and of several chunks, and one of
/// float32.
struct Shapes : torch::nn::Module {
  explicit Shapes(at::ScalarType dtype = at::kBFloat16) {
    const std::vector<at::Tensor> values{at::ones({5, 7}), at::ones({0}),
                                         at::ones({4, 6, 2}).permute({2, 0, 1}), at::ones({1001}),
                                         at::ones({33'001})};
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto value = at::empty_like(values[i], dtype);
      value.copy_(at::cos(at::arange(value.numel(), at::kFloat)).view(value.sizes()));
      tensors.push_back(register_parameter("p" + std::to_string(i), value));
    }
    tensors.push_back(register_parameter("floats", at::ones({9})));
  }

  /// At every third step one parameter has no gradient.
  void set_gradients(int step) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& gradient = tensors[i].mutable_grad();
      gradient = at::Tensor();
      if ((static_cast<int>(i) + step) % 3 == 0) continue;
      const auto places = at::arange(tensors[i].numel(), at::kFloat);
      gradient = at::empty_like(tensors[i]);
      gradient.copy_(at::sin(places * 0.7 + step).view(tensors[i].sizes()).to(at::kBFloat16));
    }
  }

  std::vector<at::Tensor> tensors;
};

using Make = std::function<std::unique_ptr<Optimizer>(const Shapes&, LowPrecision)>;

template <class Fused, class Options>
Make fused(const Options& options) {
  return [=](const Shapes& model, LowPrecision mode) {
    return std::make_unique<Fused>(model.tensors, options, mode);
  };
}

const std::vector<std::pair<const char*, Make>> every_optimizer{
    {"SGD", fused<FusedSgd>(SGDOptions(0.1).weight_decay(0.01))},
    {"momentum", fused<FusedSgd>(SGDOptions(0.1).momentum(0.9).dampening(0.1))},
    {"Adam", fused<FusedAdam>(AdamOptions(0.01).amsgrad(true))},
    {"AdamW", fused<FusedAdamW>(AdamWOptions(0.01).weight_decay(0.1))}};

detail::LowPrecisionFields& fields_of(Optimizer& optimizer, const at::Tensor& parameter) {
  return dynamic_cast<detail::LowPrecisionFields&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

void expect_equal(const Shapes& got, const Shapes& expected) {
  for (std::size_t i = 0; i < got.tensors.size(); ++i)
    EXPECT_TRUE(at::equal(got.tensors[i], expected.tensors[i])) << i;
}

template <class Fused, class Base, class Options>
void expect_masters_as_base(const Options& options, at::ScalarType dtype) {
  Shapes model(dtype);
  Shapes reference(dtype);
  std::vector<at::Tensor> floats;
  for (const auto& parameter : reference.tensors)
    floats.push_back(parameter.detach().to(at::kFloat).clone().set_requires_grad(true));
  Fused ours(model.tensors, options, LowPrecision::master);
  Base theirs(floats, options);
  for (int step = 0; step < 100; ++step) {
    model.set_gradients(step);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const auto& gradient = model.tensors[i].grad();
      floats[i].mutable_grad() = gradient.defined() ? gradient.to(at::kFloat) : at::Tensor();
    }
    if (step == 50) {
      ours.param_groups()[0].options().set_lr(0.002);
      theirs.param_groups()[0].options().set_lr(0.002);
    }
    ours.step();
    theirs.step();
  }
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const auto& parameter = model.tensors[i];
    const bool is_float = parameter.scalar_type() == at::kFloat;
    const auto master = is_float ? parameter.detach() : fields_of(ours, parameter).master_param;
    EXPECT_TRUE(master.allclose(floats[i].detach(), 1e-6, 1e-6)) << i;
    EXPECT_TRUE(at::equal(parameter, master.to(parameter.scalar_type()))) << i;
    EXPECT_EQ(master.strides(), parameter.strides()) << i;
  }
}

TEST(MasterParameters, AreThoseOfATrainingInFloat32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& options :
         {SGDOptions(0.1).weight_decay(0.01), SGDOptions(0.1).momentum(0.9).nesterov(true)})
      expect_masters_as_base<FusedSgd, torch::optim::SGD>(options, dtype);
    expect_masters_as_base<FusedAdam, torch::optim::Adam>(
        AdamOptions(0.01).amsgrad(true).weight_decay(0.1), dtype);
    expect_masters_as_base<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01), dtype);
  }
}

TEST(MasterParameters, FollowWhatTheProgramWrites) {
  const at::NoGradGuard no_grad;
  const auto parameter = at::full({4}, 2, at::kBFloat16).set_requires_grad(true);
  FusedSgd sgd(std::vector<at::Tensor>{parameter}, SGDOptions(1), LowPrecision::master);
  parameter.mutable_grad() = at::full({4}, 1e-3, at::kBFloat16);
  sgd.step();  // below half a unit of the last place
  EXPECT_TRUE(at::equal(parameter, at::full({4}, 2, at::kBFloat16)));
  const auto& master = fields_of(sgd, parameter).master_param;
  EXPECT_LT(master[0].item<float>(), 2);
  parameter[1].fill_(7);
  parameter.grad().zero_();
  sgd.step();
  EXPECT_EQ(master[1].item<float>(), 7);
  EXPECT_EQ(parameter[1].item<float>(), 7);
  EXPECT_LT(master[0].item<float>(), 2);
}

/// 64 steps of −2⁻¹², of which each alone is lost when it is rounded to nearest.
at::Tensor after_small_steps(LowPrecision mode) {
  const auto parameter = at::ones({100'003}, at::kBFloat16).set_requires_grad(true);
  FusedSgd sgd(std::vector<at::Tensor>{parameter}, SGDOptions(0x1p-12), mode);
  for (int step = 0; step < 64; ++step) {
    parameter.mutable_grad() = at::ones_like(parameter);
    sgd.step();
  }
  auto result = parameter.detach().to(at::kDouble);
  if (mode == LowPrecision::kahan) result += fields_of(sgd, parameter).kahan_comp;
  return result;
}

TEST(StochasticRounding, IsUnbiased) {
  const auto values = after_small_steps(LowPrecision::stochastic);
  EXPECT_NEAR(values.mean().item<double>(), 1 - 64 * 0x1p-12,
              5 * values.std().item<double>() / std::sqrt(values.numel()));
  EXPECT_GT(values.std().item<double>(), 0x1p-12);
  EXPECT_TRUE(at::equal(after_small_steps(LowPrecision::nearest), at::ones_like(values)));
}

TEST(StochasticRounding, KeepsTheMeansOfAdam) {
  const auto parameter = at::ones({50'000}, at::kBFloat16).set_requires_grad(true);
  const auto precise = at::ones({50'000}).set_requires_grad(true);
  FusedAdam ours(std::vector<at::Tensor>{parameter}, AdamOptions(1e-5), LowPrecision::stochastic);
  torch::optim::Adam theirs({precise}, AdamOptions(1e-5));
  for (int step = 0; step < 200; ++step) {
    parameter.mutable_grad() = at::full({50'000}, 1 + step % 3, at::kBFloat16);
    precise.mutable_grad() = parameter.grad().to(at::kFloat);
    ours.step();
    theirs.step();
  }
  const auto state = [](Optimizer & optimizer, const at::Tensor& of) -> auto& {
    return static_cast<torch::optim::AdamParamState&>(
        *optimizer.state().at(of.unsafeGetTensorImpl()));
  };
  const auto expect_mean = [](const at::Tensor& got, const at::Tensor& expected) {
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    const double mean = expected.mean().item<double>();
    EXPECT_NEAR(got.to(at::kDouble).mean().item<double>(), mean, 1e-3 * mean);
  };
  expect_mean(state(ours, parameter).exp_avg(), state(theirs, precise).exp_avg());
  expect_mean(state(ours, parameter).exp_avg_sq(), state(theirs, precise).exp_avg_sq());
}

TEST(KahanSummation, KeepsWhatRoundingLoses) {
  const auto values = after_small_steps(LowPrecision::kahan);
  EXPECT_NEAR(values.min().item<double>(), 1 - 64 * 0x1p-12, 0x1p-14);
  EXPECT_NEAR(values.max().item<double>(), 1 - 64 * 0x1p-12, 0x1p-14);
}

TEST(LowPrecision, GoesOnFromACheckpointBitForBit) {
  const TemporaryFolder folder;
  for (const auto mode : modes) {
    for (const auto& [kind, make] : every_optimizer) {
      SCOPED_TRACE(std::string(name(mode)) + ' ' + kind);
      Shapes model;
      const auto optimizer = make(model, mode);
      const auto train = [](Shapes& of, Optimizer& by, int from, int to) {
        for (int step = from; step < to; ++step) {
          of.set_gradients(step);
          by.step();
        }
      };
      train(model, *optimizer, 0, 4);
      save_checkpoint(folder / "file", model, *optimizer);
      const auto dict = state_dict(*optimizer);
      Shapes of_file;
      const auto from_file = make(of_file, mode);
      train(of_file, *from_file, 7, 8);
      load_checkpoint(folder / "file", of_file, *from_file);
      Shapes of_dict;
      const auto from_dict = make(of_dict, mode);
      load_state_dict(of_dict, state_dict(model));
      load_state_dict(*from_dict, dict);
      train(model, *optimizer, 4, 8);
      train(of_file, *from_file, 4, 8);
      train(of_dict, *from_dict, 4, 8);
      expect_equal(of_file, model);
      expect_equal(of_dict, model);
      save_checkpoint(folder / "file", model, *optimizer);
      const auto expected = safetensors::read(folder / "file");
      save_checkpoint(folder / "resumed", of_file, *from_file);
      const auto resumed = safetensors::read(folder / "resumed");
      ASSERT_EQ(resumed.tensors.size(), expected.tensors.size());
      for (const auto& [tensor, value] : expected.tensors)
        EXPECT_TRUE(at::equal(resumed.tensors.at(tensor), value)) << tensor;
    }
  }
}

TEST(LowPrecision, RefusesTheStateOfAnotherMode) {
  const TemporaryFolder folder;
  Shapes model;
  FusedAdamW masters(model.tensors, AdamWOptions(0.01), LowPrecision::master);
  model.set_gradients(1);
  masters.step();
  save_checkpoint(folder / "file", model, masters);
  for (const auto mode : {LowPrecision::nearest, LowPrecision::stochastic, LowPrecision::kahan}) {
    FusedAdamW other(model.tensors, AdamWOptions(0.01), mode);
    EXPECT_THAT(
        message_of<CheckpointError>([&] { load_checkpoint(folder / "file", model, other); }),
        HasSubstr("expected the state of LowPrecision::" + std::string(name(mode)) +
                  ", found that of LowPrecision::master: construct the optimizer with"));
    EXPECT_THROW(load_state_dict(other, state_dict(masters)), CheckpointError);
  }
  FusedAdamW stochastic(model.tensors, AdamWOptions(0.01), LowPrecision::stochastic);
  stochastic.step();
  FusedAdamW kahan(model.tensors, AdamWOptions(0.01), LowPrecision::kahan);
  EXPECT_THROW(load_state_dict(kahan, state_dict(stochastic)), CheckpointError);
}

TEST(LowPrecision, RefusesParametersThatItCannotUpdate) {
  const auto expect_error = [](const auto& fn, const std::string& text) {
    EXPECT_THAT(refusal(fn), HasSubstr(text));
  };
  const auto one = [](const at::Tensor& parameter) { return std::vector<at::Tensor>{parameter}; };
  const auto half = at::ones({3}, at::kHalf).set_requires_grad(true);
  for (const auto mode : {LowPrecision::stochastic, LowPrecision::kahan})
    expect_error([&] { FusedSgd(one(half), SGDOptions(0.1), mode); },
                 "BFloat16: use LowPrecision::master for Half");
  const auto with_holes = at::ones({4, 6}, at::kBFloat16).slice(1, 0, 6, 2).set_requires_grad(true);
  with_holes.mutable_grad() = at::ones({4, 3}, at::kBFloat16);
  expect_error([&] { FusedSgd(one(with_holes), SGDOptions(0.1), LowPrecision::master).step(); },
               "not dense in memory");
  const auto rows = at::ones({4, 2}, at::kBFloat16).set_requires_grad(true);
  rows.mutable_grad() = at::ones({4, 2}, at::kBFloat16).to_sparse();
  expect_error([&] { FusedSgd(one(rows), SGDOptions(0.1), LowPrecision::kahan).step(); },
               "a dense gradient");
  expect_error([] { parse_low_precision("masters"); },
               "got 'masters', expected nearest, master, stochastic or kahan");
}

TEST(LowPrecision, StepsOtherParametersAsBaseDoes) {
  // The kernel does not take parameters with holes: these take the step of torch's SGD.
  const auto make = [] {
    return std::vector<at::Tensor>{at::ones({4, 6}).slice(1, 0, 6, 2).set_requires_grad(true),
                                   at::ones({5}, at::kBFloat16).set_requires_grad(true)};
  };
  auto ours = make();
  auto theirs = make();
  FusedSgd fused(ours, SGDOptions(0.25).momentum(0.5), LowPrecision::stochastic);
  torch::optim::SGD plain({theirs[0]}, SGDOptions(0.25).momentum(0.5));
  for (int step = 0; step < 3; ++step) {
    ours[0].mutable_grad() = at::full({4, 3}, 0.5 * step);
    ours[1].mutable_grad() = at::ones({5}, at::kBFloat16);
    theirs[0].mutable_grad() = ours[0].grad().clone();
    fused.step();
    plain.step();
  }
  EXPECT_TRUE(at::equal(ours[0], theirs[0]));
  // 1 − 0.25 · (1 + 1.5 + 1.75), which bfloat16 represents.
  EXPECT_TRUE(at::equal(ours[1], at::full({5}, -0.0625, at::kBFloat16)));
  EXPECT_TRUE(ours[1].grad().defined());
}

}  // namespace
}  // namespace lockstep::testing::low_precision
