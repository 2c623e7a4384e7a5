// The optimizers of LibTorch are what fused ones must equal but for rounding. Parameters may be of
// float32, bfloat16 and float16.
#include "lockstep/fused_optimizers.h"

#include <cmath>

#include "lockstep/model_files.h"
#include "parallel/update/optimizer_fields.h"
#include "tests/refusal.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

/// Parameters in other strides, of no elements, of an odd number and of several chunks, those of
/// float32 and float64, and one with holes, which the kernel does not take.
struct Shapes : torch::nn::Module {
  explicit Shapes(at::ScalarType dtype = at::kBFloat16) {
    std::vector<at::Tensor> values{at::ones({5, 7}), at::ones({0}),
                                   at::ones({4, 6, 2}).permute({2, 0, 1}), at::ones({1001})};
    if (dtype != at::kFloat) values.push_back(at::ones({33'001}));
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto value = at::empty_like(values[i], dtype);
      value.copy_(at::cos(at::arange(value.numel(), at::kFloat)).view(value.sizes()));
      tensors.push_back(register_parameter("p" + std::to_string(i), value));
    }
    tensors.push_back(register_parameter("floats", at::ones({9})));
    tensors.push_back(register_parameter("doubles", at::ones({3}, at::kDouble)));
    tensors.push_back(register_parameter("holes", at::ones({4, 6}).slice(1, 0, 6, 2)));
  }

  /// At every third step one parameter has no gradient. Some steps have what the kernel does not
  /// take: lazy negatives, gradients in other strides than their parameter, or one of the holes.
  void set_gradients(int step) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& gradient = tensors[i].mutable_grad();
      gradient = at::Tensor();
      const bool has_holes = i + 1 == tensors.size();
      if (has_holes ? step % 8 != 3 : (static_cast<int>(i) + step) % 3 == 0) continue;
      const auto places = at::arange(tensors[i].numel(), at::kFloat);
      gradient = at::empty_like(tensors[i]);
      gradient.copy_(at::sin(places * 0.7 + step).view(tensors[i].sizes()).to(at::kBFloat16));
      if (step % 8 == 5) gradient = torch::_neg_view(gradient);
      if (step % 8 == 7 && gradient.dim() == 2) gradient = gradient.t().contiguous().t();
    }
  }

  std::vector<at::Tensor> tensors;
};

detail::LowPrecisionFields& fields_of(torch::optim::Optimizer& optimizer,
                                      const at::Tensor& parameter) {
  return dynamic_cast<detail::LowPrecisionFields&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

/// 40 steps with a change of the learning rate in between. Of parameters of low precision, the
/// masters are those of a training in float32.
template <class Fused, class Base, class Options>
void expect_steps_as_base(const Options& options, at::ScalarType dtype = at::kFloat) {
  const bool rounds = dtype != at::kFloat;
  const Shapes model(dtype);
  std::vector<at::Tensor> precise;
  for (const auto& parameter : model.tensors) {
    const auto precise_type = at::promote_types(parameter.scalar_type(), at::kFloat);
    precise.push_back(parameter.detach().to(precise_type).clone().set_requires_grad(true));
  }
  Fused ours(model.tensors, options, rounds ? LowPrecision::master : LowPrecision::nearest);
  Base theirs(precise, options);
  // As a wrapper that shares updates does: entries without tensors are no state.
  for (const auto& parameter : model.tensors)
    if (!rounds) ours.state_of(parameter);
  for (int step = 0; step < 40; ++step) {
    model.set_gradients(step);
    for (std::size_t i = 0; i < precise.size(); ++i) {
      const auto& gradient = model.tensors[i].grad();
      precise[i].mutable_grad() =
          gradient.defined() ? gradient.to(precise[i].scalar_type()).clone() : at::Tensor();
    }
    for (torch::optim::Optimizer* each :
         std::initializer_list<torch::optim::Optimizer*>{&ours, &theirs}) {
      if (step == 20) each->param_groups()[0].options().set_lr(0.002);
      each->step();
    }
    for (std::size_t i = 0; i < precise.size(); ++i)
      EXPECT_EQ(model.tensors[i].grad().defined(), precise[i].grad().defined()) << i;
    if ((step + 1) % (rounds ? 40 : 10) != 0) continue;
    for (std::size_t i = 0; i < precise.size(); ++i) {
      const auto& parameter = model.tensors[i];
      const bool is_master = at::isReducedFloatingType(parameter.scalar_type());
      const auto master = is_master ? fields_of(ours, parameter).master_param : parameter.detach();
      EXPECT_TRUE(master.allclose(precise[i].detach(), rounds ? 1e-6 : 1e-5, 1e-6)) << i;
      EXPECT_TRUE(at::equal(parameter, master.to(parameter.scalar_type()))) << i;
      EXPECT_EQ(master.strides(), parameter.strides()) << i;
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(rounds || ours.state().size() == theirs.state().size());
}

TEST(FusedOptimizers, StepAsTheirBasesDo) {
  for (const auto& options :
       {SGDOptions(0.1), SGDOptions(0.1).weight_decay(0.01), SGDOptions(0.1).momentum(0.9),
        SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1),
        SGDOptions(0.1).momentum(0.8).nesterov(true)}) {
    expect_steps_as_base<FusedSgd, torch::optim::SGD>(options);
  }
  for (const auto& options :
       {AdamOptions(0.01), AdamOptions(0.01).weight_decay(0.1), AdamOptions(0.01).amsgrad(true),
        AdamOptions(0.01).betas({0.5, 0.9}).eps(1e-3)}) {
    expect_steps_as_base<FusedAdam, torch::optim::Adam>(options);
  }
  for (const auto& options : {AdamWOptions(0.01), AdamWOptions(0.01).weight_decay(0.3),
                              AdamWOptions(0.01).amsgrad(true).weight_decay(0)}) {
    expect_steps_as_base<FusedAdamW, torch::optim::AdamW>(options);
  }
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& options :
         {SGDOptions(0.1).weight_decay(0.01), SGDOptions(0.1).momentum(0.9).nesterov(true)})
      expect_steps_as_base<FusedSgd, torch::optim::SGD>(options, dtype);
    expect_steps_as_base<FusedAdam, torch::optim::Adam>(
        AdamOptions(0.01).amsgrad(true).weight_decay(0.1), dtype);
    expect_steps_as_base<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01), dtype);
  }
}

void expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].detach().allclose(expected[i].detach(), 1e-5, 1e-6)) << i;
  }
}

TEST(FusedSgd, UpdatesEveryElementOfLowPrecision) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& options :
         {SGDOptions(0.1), SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)}) {
      const auto start = at::linspace(1, 2, 1001).view({77, 13}).t();
      const auto ours = start.to(dtype).set_requires_grad(true);
      const auto theirs = start.clone().set_requires_grad(true);
      FusedSgd fused(std::vector<at::Tensor>{ours}, options);
      torch::optim::SGD plain(std::vector<at::Tensor>{theirs}, options);
      for (int step = 0; step < 3; ++step) {
        const auto gradient = at::sin(start * 20 + step).to(dtype);
        ours.mutable_grad() = gradient;
        theirs.mutable_grad() = gradient.to(at::kFloat);
        fused.step();
        plain.step();
      }
      EXPECT_TRUE(ours.detach().to(at::kFloat).allclose(theirs.detach(), 0.02, 0.02)) << dtype;
    }
  }
}

/// A checkpoint of each is one of the other, and both go on equally.
template <class Fused, class Base, class Options>
void expect_shared_checkpoints(const Options& options) {
  const TemporaryFolder folder;
  Training ours(kind_of<Fused>("", options)), theirs(kind_of<Base>("", options));
  ours.step(0);
  ours.save(folder / "c", {.epoch = 1});
  EXPECT_EQ(theirs.load(folder / "c").epoch, 1);
  for (auto* each : {&ours, &theirs}) each->step(1);
  expect_near(ours.values(), theirs.values());
  theirs.save(folder / "d", {.epoch = 2});
  EXPECT_EQ(ours.load(folder / "d").epoch, 2);
  EXPECT_EQ(ours.optimizer->state().size(), theirs.optimizer->state().size());
  for (auto* each : {&ours, &theirs}) each->step(2);
  expect_near(ours.values(), theirs.values());
  at::Tensor loss;
  const auto returned = ours.optimizer->step([&] {
    loss = ours.model->forward(at::ones({2, 4})).square().sum();
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(returned.equal(loss));
}

TEST(FusedOptimizers, ShareCheckpointsWithTheirBases) {
  expect_shared_checkpoints<FusedSgd, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9));
  expect_shared_checkpoints<FusedAdam, torch::optim::Adam>(AdamOptions(0.1).amsgrad(true));
  expect_shared_checkpoints<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.1));
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

TEST(LowPrecision, LosesNoSmallSteps) {
  const auto summed = after_small_steps(LowPrecision::kahan);
  EXPECT_NEAR(summed.min().item<double>(), 1 - 64 * 0x1p-12, 0x1p-14);
  EXPECT_NEAR(summed.max().item<double>(), 1 - 64 * 0x1p-12, 0x1p-14);
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
  const auto state = [](torch::optim::Optimizer & optimizer, const at::Tensor& of) -> auto& {
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

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Shapes&, LowPrecision)>;

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

TEST(LowPrecision, GoesOnFromACheckpointBitForBit) {
  const TemporaryFolder folder;
  for (const auto mode : {LowPrecision::master, LowPrecision::stochastic, LowPrecision::kahan}) {
    for (const auto& [kind, make] : every_optimizer) {
      SCOPED_TRACE(std::string(name(mode)) + ' ' + kind);
      Shapes model, of_file, of_dict;
      const auto optimizer = make(model, mode), from_file = make(of_file, mode);
      const auto from_dict = make(of_dict, mode);
      const auto train = [](const Shapes& of, torch::optim::Optimizer& by, int from, int to) {
        for (int step = from; step < to; ++step) {
          of.set_gradients(step);
          by.step();
        }
      };
      train(model, *optimizer, 0, 4);
      save_checkpoint(folder / "file", model, *optimizer);
      const auto dict = state_dict(*optimizer);
      train(of_file, *from_file, 7, 8);
      load_checkpoint(folder / "file", of_file, *from_file);
      load_state_dict(of_dict, state_dict(model));
      load_state_dict(*from_dict, dict);
      train(model, *optimizer, 4, 8);
      train(of_file, *from_file, 4, 8);
      train(of_dict, *from_dict, 4, 8);
      save_checkpoint(folder / "file", model, *optimizer);
      save_checkpoint(folder / "resumed", of_file, *from_file);
      EXPECT_EQ(content(folder / "resumed"), content(folder / "file"));
      for (std::size_t i = 0; i < model.tensors.size(); ++i)
        EXPECT_TRUE(at::equal(of_dict.tensors[i], model.tensors[i])) << i;
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

// A hook may return one.
TEST(LowPrecision, TakesAZeroWithoutMemoryAsAGradient) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto parameter = at::ones({3}, dtype).set_requires_grad(true);
    parameter.mutable_grad() = at::_efficientzerotensor({3}, dtype);
    FusedSgd(std::vector{parameter}, SGDOptions(0.1), LowPrecision::kahan).step();
    EXPECT_TRUE(at::equal(parameter, at::ones({3}, dtype)));
  }
}

TEST(LowPrecision, RefusesParametersThatItCannotUpdate) {
  const auto expect_error = [](const at::Tensor& parameter, const at::Tensor& gradient,
                               LowPrecision mode, const char* text) {
    parameter.set_requires_grad(true).mutable_grad() = gradient;
    EXPECT_THAT(refusal([&] { FusedSgd(std::vector{parameter}, SGDOptions(0.1), mode).step(); }),
                HasSubstr(text));
  };
  for (const auto mode : {LowPrecision::stochastic, LowPrecision::kahan})
    expect_error(at::ones({3}, at::kHalf), {}, mode, "BFloat16: use LowPrecision::master for Half");
  const auto values = at::ones({4, 6}, at::kBFloat16);
  expect_error(values.slice(1, 0, 6, 2), at::ones({4, 3}, at::kBFloat16), LowPrecision::master,
               "not dense in memory");
  expect_error(values.clone(), values.to_sparse(), LowPrecision::kahan, "a dense gradient");
  EXPECT_THAT(refusal([] { parse_low_precision("masters"); }),
              HasSubstr("got 'masters', expected nearest, master, stochastic or kahan"));
}

}  // namespace
}  // namespace lockstep::testing
