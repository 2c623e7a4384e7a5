// Models with batch norms train on N ranks as one process does.
#include "tests/nn/whole_batch.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

/// Two ways with batch norms in a row, which meet: more than one order of backward is possible.
struct NormNet : nn::Module {
  explicit NormNet(at::ScalarType dtype = at::kDouble) {
    register_module("stem", stem);
    register_module("left", left);
    register_module("right", right);
    register_module("norm", norm);
    register_module("head", head);
    to(dtype);
    set_values(*this, 3);
  }
  at::Tensor forward(at::Tensor x) {
    x = stem->forward(x);
    x = torch::relu(norm(left->forward(x) + right->forward(x)));
    return head(x.mean({2, 3}));
  }
  static nn::Conv2d conv(int inputs, int outputs) {
    return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 3).padding(1).bias(false));
  }

  nn::Sequential stem{conv(2, 5), nn::BatchNorm2d(5), nn::ReLU(), nn::BatchNorm2d(5)};
  nn::Sequential left{conv(5, 7), nn::BatchNorm2d(7), nn::Tanh(), conv(7, 7), nn::BatchNorm2d(7)};
  nn::Sequential right{conv(5, 7), nn::BatchNorm2d(7)};
  nn::BatchNorm2d norm{nn::BatchNorm2dOptions(7).momentum(std::nullopt)};
  nn::Linear head{7, 3};
};

/// Every rank has unequal parts, and another of them is without samples from step to step.
std::vector<std::int64_t> parts_of_step(int ranks, int step) {
  std::vector<std::int64_t> parts(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    parts[rank] = static_cast<std::int64_t>((rank + static_cast<std::size_t>(step)) % 3);
  parts[0] += 1;
  return parts;
}

constexpr int steps_compared = 12;

/// rank -1 has the whole batch. The loss is a sum of which each rank has its samples', times the
/// number of ranks, since gradients are averaged.
template <class Forward>
void train(NormNet& model, const Forward& forward, int rank, int ranks) {
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < steps_compared; ++step) {
    const auto seed = static_cast<std::uint64_t>(10 * step);
    const auto parts = parts_of_step(ranks, step);
    std::int64_t total = 0, begin = 0;
    for (int other = 0; other < ranks; ++other) {
      if (other < rank) begin += parts[static_cast<std::size_t>(other)];
      total += parts[static_cast<std::size_t>(other)];
    }
    const auto input = random({total, 2, 4, 4}, seed, at::kDouble);
    const auto target = random({total, 3}, seed + 1, at::kDouble);
    const auto part = [&](const at::Tensor& whole) {
      return rank < 0 ? whole : whole.narrow(0, begin, parts[static_cast<std::size_t>(rank)]);
    };
    sgd.zero_grad();
    const double scale = (rank < 0 ? 1.0 : ranks) / static_cast<double>(total);
    ((forward(part(input)) - part(target)).pow(2).sum() * scale).backward();
    sgd.step();
  }
}

std::vector<at::Tensor> tensors_of(const nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& tensor : model.parameters()) all.push_back(tensor.detach());
  for (const auto& tensor : model.buffers()) all.push_back(tensor.to(at::kDouble));
  return all;
}

void expect_equal_to_one_process(int ranks, const DataParallelOptions& options) {
  std::vector<at::Tensor> expected;
  on_ranks(1, [&](const Group&) {
    NormNet model;
    train(
        model, [&](const at::Tensor& x) { return model.forward(x); }, -1, ranks);
    expected = tensors_of(model);
  });
  on_ranks(ranks, [&](const Group& world) {
    auto model = std::make_shared<NormNet>();
    convert_sync_batchnorm(*model, world);
    DistributedDataParallel ddp(model, world, options);
    train(
        *model, [&](const at::Tensor& x) { return ddp(x); }, world.rank(), ranks);
    const auto got = tensors_of(*model);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(distance(got[i], expected[i]), 1e-10)
          << "tensor " << i << " of rank " << world.rank() << " of " << ranks;
    }
    EXPECT_GT(distance(got[0], tensors_of(NormNet())[0]), 1e-3);
  });
}

SUITE_ON_RANKS(SyncTraining, 1, 2, 3, 4, 7);

TEST_P(SyncTraining, IsOneProcessWithManyBucketsAlsoWithoutBufferSync) {
  auto options = one_each;
  expect_equal_to_one_process(GetParam(), options);
  options.buffer_policy = BufferPolicy::none;
  expect_equal_to_one_process(GetParam(), options);
}

/// Multi-round strategies have outstanding collectives on the group of gradients while a layer
/// waits on its own group. A strategy's parameters are near those of exact averages: nearer than
/// the given part of the way that these have gone.
TEST_ON_RANKS(SyncTraining, TakesEveryStrategy, 3) {
  at::Tensor exact;
  for (const auto& each : {std::pair<std::string, double>("fp32", 0),
                           {"fp16", 0.01},
                           {"int8", 0.1},
                           {"topk:0.3", 0.5},
                           {"power_sgd", 0.5}}) {
    const auto& [strategy, nearer] = each;
    SCOPED_TRACE(strategy);
    auto model = std::make_shared<NormNet>(at::kFloat);
    convert_sync_batchnorm(*model, world);
    torch::optim::SGD sgd(model->parameters(), 0.01);
    auto options = one_each;
    options.strategy = parse_strategy(strategy);
    DistributedOptimizer optimizer(sgd, *model, world, options);
    for (int step = 0; step < 6; ++step) {
      const auto seed = static_cast<std::uint64_t>(10 * step + world.rank());
      optimizer.backward_and_update(model->forward(random({2, 2, 4, 4}, seed)).pow(2).mean());
    }
    for (const auto& tensor : tensors_of(*model)) expect_same_bits(tensor, world);
    const auto in_a_row = [](const nn::Module& of) {
      return nn::utils::parameters_to_vector(of.parameters()).detach();
    };
    const at::Tensor got = in_a_row(*model), start = in_a_row(NormNet(at::kFloat));
    if (!exact.defined()) exact = got;
    const double way = (exact - start).norm().item<double>();
    EXPECT_GT(way, 1e-3);
    EXPECT_LE((got - exact).norm().item<double>(), nearer * way);
  }
}

}  // namespace
}  // namespace lockstep::testing
