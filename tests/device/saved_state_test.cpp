#include "lockstep/checkpoint.h"
#include "lockstep/moving_average.h"
#include "tests/device/training.h"

// Checkpoints of models on devices: runs on devices and on the CPU continue each other's files.

namespace lockstep::testing::saved_state {
namespace {

/// An optimizer of a program, which loads its state by itself.
struct OwnSgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        std::vector<at::Tensor> parameters) {
  if (kind == "adam") {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.01).amsgrad(true));
  }
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  if (kind == "own") return std::make_unique<OwnSgd>(std::move(parameters), options);
  return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
}

/// One rank's training, with all that a checkpoint refers to.
struct TrainingRun {
  explicit TrainingRun(const Group& of, const std::string& kind,
                       const std::string& strategy = "topk:0.2")
      : group(of), net(of.device()) {
    inner = make_optimizer(kind, net.parameters());
    optimizer.emplace(*inner, net, group, parse_strategy(strategy));
    average.emplace(net, MovingAverageOptions{.decay = 0.8, .average_buffers = true});
  }

  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      optimizer->backward_and_update(loss_of(net.forward(inputs_of(group, step)), group, step));
      average->update();
    }
  }
  Checkpoint checkpoint() {
    return {.model = net,
            .optimizer = *inner,
            .strategy = *optimizer,
            .extra = {{"average", *average}}};
  }
  /// Parameters, buffers, averages and residuals, on the CPU.
  std::vector<at::Tensor> state() {
    auto all = values(net);
    for (const auto& [name, tensor] : average->state()) all.push_back(tensor.cpu());
    for (const auto& [name, tensor] : optimizer->state()) all.push_back(tensor.cpu());
    return all;
  }

  Group group;
  Net net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::optional<DistributedOptimizer> optimizer;
  std::optional<MovingAverage> average;
};

class SavedOnDevices : public OnDelayedDevices {
 protected:
  /// On a GPU, rounding decides which of two gradients that are almost equal topk sends.
  double tolerance() const { return OnDevices::tolerance(1e-5, 5e-2); }
};

TEST_P(SavedOnDevices, AFileOfTheCpuOrOfADeviceContinuesOnEither) {
  for (const auto* kind : {"adam", "own"}) {
    SCOPED_TRACE(kind);
    const auto folder = folder_of_ranks();
    run([&](const Group& group) {
      TrainingRun reference(group.host(), kind);
      reference.train(0, 4);
      const auto expected = reference.state();
      for (const bool saved_on_device : {false, true}) {
        const auto path = folder / (saved_on_device ? "device" : "cpu");
        TrainingRun first(saved_on_device ? group : group.host(), kind);
        first.train(0, 2);
        first.checkpoint().save(path, {.epoch = 2}, first.group);
        for (const bool loaded_on_device : {false, true}) {
          SCOPED_TRACE(::testing::Message() << saved_on_device << loaded_on_device);
          TrainingRun second(loaded_on_device ? group : group.host(), kind);
          const auto resumed = second.checkpoint().load(path, second.group);
          EXPECT_EQ(resumed.changes, "");
          EXPECT_EQ(resumed.meta.epoch, 2);
          expect_equal(second.state(), first.state(), 0);
          second.train(2, 4);
          expect_equal(second.state(), expected, tolerance());
        }
      }
    });
  }
}

TEST_P(SavedOnDevices, TheWriterKeepsTheValuesOfTheCall) {
  const auto folder = folder_of_ranks();
  run([&](const Group& group) {
    TrainingRun first(group, "adam");
    CheckpointWriter writer(group);
    writer.prepare(first.checkpoint());
    for (int step = 0; step < 3; ++step) {
      first.train(step, step + 1);
      const auto number = std::to_string(step);
      first.checkpoint().save(folder / ("expected" + number), {.epoch = step}, group);
      writer.save(first.checkpoint(), folder / ("behind" + number), {.epoch = step});
    }
    first.train(3, 4);  // while the file is being written
    writer.wait();
    if (group.rank() != 0) return;
    for (const char* number : {"0", "1", "2"}) {
      const auto expected = safetensors::read(folder / (std::string("expected") + number));
      const auto found = safetensors::read(folder / (std::string("behind") + number));
      EXPECT_EQ(found.metadata, expected.metadata);
      ASSERT_EQ(found.tensors.size(), expected.tensors.size());
      for (const auto& [name, tensor] : expected.tensors) {
        EXPECT_TRUE(found.tensors.at(name).equal(tensor)) << name;
      }
    }
  });
}

TEST_P(SavedOnDevices, AnAverageIsAppliedAndTakenBack) {
  run([&](const Group& group) {
    TrainingRun on_cpu(group.host(), "sgd", "fp32");
    TrainingRun on_device(group, "sgd", "fp32");
    for (auto* of : {&on_cpu, &on_device}) of->train(0, 3);
    const auto trained = values(on_device.net);
    std::vector<at::Tensor> expected;
    {
      const auto averaged = on_cpu.average->apply();
      expected = values(on_cpu.net);
    }
    {
      const auto averaged = on_device.average->apply();
      expect_equal(values(on_device.net), expected, tolerance());
      EXPECT_EQ(on_device.net.parameters().front().device(), group.device());
    }
    expect_equal(values(on_device.net), trained, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, SavedOnDevices,
                         ::testing::Combine(both_backends, ::testing::Values(2, 3)), name_of_case);

}  // namespace
}  // namespace lockstep::testing::saved_state
