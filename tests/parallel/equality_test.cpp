// N ranks train as one process does.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/error.h"
#include "tests/parallel/models.h"
#include "tests/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t batch_size = 2;
constexpr int steps_compared = 20;

template <class M>
std::shared_ptr<M> make_model() {
  auto model = std::make_shared<M>();
  model->to(torch::kDouble);
  set_values(*model, 3);
  return model;
}

/// Trains with the part of each global batch that the rank has; the model's type says what a batch
/// is.
template <class M, class Forward>
void train(M& model, const Forward& forward, int rank, int ranks) {
  torch::optim::SGD sgd(model.parameters(),
                        torch::optim::SGDOptions(0.005).momentum(0.9).weight_decay(1e-3));
  for (int step = 0; step < steps_compared; ++step) {
    const auto seed = static_cast<std::uint64_t>(2 * step);
    const auto input = M::batch(batch_size * ranks, 100 + seed);
    const auto target = random({batch_size * ranks, M::outputs}, 101 + seed, at::kDouble);
    const auto part = [&](const at::Tensor& whole) {
      return whole.narrow(0, rank * batch_size, batch_size);
    };
    sgd.zero_grad();
    const bool whole = rank < 0;
    auto loss =
        torch::mse_loss(forward(whole ? input : part(input)), whole ? target : part(target));
    loss.backward();
    sgd.step();
  }
}

template <class M>
void expect_equal_to_one_process(int ranks, const DataParallelOptions& options) {
  std::vector<at::Tensor> expected;
  on_ranks(1, [&](const Group&) {
    auto model = make_model<M>();
    train(
        *model, [&](const at::Tensor& x) { return model->forward(x); }, -1, ranks);
    for (const auto& parameter : model->parameters()) expected.push_back(parameter.detach().cpu());
  });
  on_ranks(ranks, [&](const Group& world) {
    auto model = make_model<M>();
    DistributedDataParallel ddp(model, world, options);
    train(
        *model, [&](const at::Tensor& x) { return ddp(x); }, world.rank(), ranks);
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(distance(parameters[i].detach().cpu(), expected[i]), 1e-12)
          << "parameter " << i << " of rank " << world.rank() << " of " << ranks;
      EXPECT_GT(distance(make_model<M>()->parameters()[i].detach().cpu(), expected[i]), 1e-6);
    }
  });
}

class Equality : public ::testing::TestWithParam<int> {};

TEST_P(Equality, OfMlpToOneProcess) { expect_equal_to_one_process<Mlp>(GetParam(), {}); }

TEST_P(Equality, OfMlpInManyBucketsToOneProcess) {
  expect_equal_to_one_process<Mlp>(GetParam(), {.buckets = {.first = 64, .rest = 300}});
}

TEST_P(Equality, OfCnnToOneProcess) { expect_equal_to_one_process<Cnn>(GetParam(), {}); }

INSTANTIATE_TEST_SUITE_P(Ranks, Equality, ::testing::Values(1, 2, 3, 4, 7));

/// Rank 0's parameters after 100 steps in float32; fails where a rank's differ in any bit.
at::Tensor train_replicas(const Group& world) {
  auto model = std::make_shared<Mlp>(std::vector<std::int64_t>{33, 65, 17, 9});
  set_values(*model, static_cast<std::uint64_t>(world.rank()));  // rank 0's shall win
  DistributedDataParallel ddp(model, world, {.buckets = {.first = 1024, .rest = 8192}});
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 100; ++step) {
    const auto seed = static_cast<std::uint64_t>(1000 * step + world.rank());
    adam.zero_grad(step % 2 == 0);
    ddp(random({5, 33}, seed)).pow(2).mean().backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.3);
    adam.step();
  }
  std::vector<at::Tensor> flat;
  for (const auto& parameter : model->parameters()) flat.push_back(parameter.detach().flatten());
  const auto mine = torch::cat(flat);
  auto all = at::empty({world.size() * mine.numel()}, mine.options());
  world.all_gather(all, mine).wait();
  for (const auto& theirs : all.chunk(world.size())) EXPECT_TRUE(torch::equal(theirs, mine));
  EXPECT_TRUE(mine.isfinite().all().item<bool>());
  return mine;
}

TEST(Replicas, AreTheSameBitsAfter100StepsAndSoAreRuns) {
  for (const int ranks : {2, 3}) {
    std::vector<at::Tensor> runs(2);
    for (auto& run : runs) {
      on_ranks(ranks, [&](const Group& world) {
        const auto parameters = train_replicas(world);
        if (world.rank() == 0) run = parameters;
      });
    }
    EXPECT_TRUE(torch::equal(runs[0], runs[1])) << ranks << " ranks";
  }
}

const ProcessBody replicas("replicas", [](std::shared_ptr<Communicator> communicator) {
  at::set_num_threads(1);
  train_replicas(Group(std::move(communicator)));
  if (::testing::Test::HasFailure()) throw std::runtime_error("replicas differ");
});

TEST(Replicas, AreTheSameBitsInProcesses) {
  expect_processes(2, "replicas");
  expect_processes(3, "replicas");
}

/// Moves parameters along their gradients, as sharpness-aware minimisation does, and back.
class Perturbation {
 public:
  explicit Perturbation(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    const torch::NoGradGuard no_grad;
    auto squares = at::zeros({}, parameters_[0].options().requires_grad(false));
    for (const auto& parameter : parameters_) {
      saved_.push_back(parameter.clone());
      squares += parameter.grad().pow(2).sum();
    }
    for (auto& parameter : parameters_) {
      parameter.add_(parameter.grad() * (0.05 / squares.sqrt()));
      parameter.mutable_grad().reset();
    }
  }
  ~Perturbation() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].copy_(saved_[i]);
  }
  Perturbation(const Perturbation&) = delete;
  Perturbation& operator=(const Perturbation&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> saved_;
};

at::Tensor part_of_batch(int step, int rank) {
  return Mlp::batch(3, static_cast<std::uint64_t>(10 * step + rank));
}

class SharpnessAware : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ByOwnGradient, SharpnessAware, ::testing::Bool());

TEST_P(SharpnessAware, MinimisationEqualsOneProcess) {
  constexpr int ranks = 3;
  const bool by_own = GetParam();  // each rank's own gradient, or the mean
  on_ranks(ranks, [&](const Group& world) {
    const auto model = make_model<Mlp>();
    const auto whole = make_model<Mlp>();
    torch::optim::SGD sgd(model->parameters(), 0.1);
    torch::optim::SGD of_whole(whole->parameters(), 0.1);
    DataParallelOptions options;
    if (by_own) options.verify_every = 0;
    DistributedDataParallel ddp(model, world, options);
    const auto loss = [](auto& forward, int step, int rank) {
      return forward(part_of_batch(step, rank)).pow(2).mean();
    };
    const auto forward = [&](const at::Tensor& x) { return whole->forward(x); };
    for (int step = 0; step < 4; ++step) {
      sgd.zero_grad();
      {
        std::optional<NoSync> local;
        if (by_own) local.emplace(ddp.no_sync());
        loss(ddp, step, world.rank()).backward();
      }
      {
        const Perturbation perturbation(model->parameters());
        loss(ddp, step, world.rank()).backward();
      }
      sgd.step();

      std::vector<at::Tensor> sums(whole->parameters().size());
      for (int turn = 0; turn < (by_own ? ranks : 1); ++turn) {
        const auto backward = [&] {
          auto sum = at::zeros({}, whole->parameters()[0].options().requires_grad(false));
          for (int rank = 0; rank < ranks; ++rank) {
            if (!by_own || rank == turn) sum = sum + loss(forward, step, rank);
          }
          (by_own ? sum : sum / ranks).backward();
        };
        of_whole.zero_grad();
        backward();
        const Perturbation perturbation(whole->parameters());
        backward();
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const auto gradient = whole->parameters()[i].grad();
          sums[i] = sums[i].defined() ? sums[i] + gradient : gradient.clone();
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i)
        whole->parameters()[i].mutable_grad() = sums[i] / (by_own ? ranks : 1);
      of_whole.step();
    }
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      const auto parameter = model->parameters()[i].detach();
      EXPECT_LT(distance(parameter, whole->parameters()[i].detach()), 1e-12);
      auto of_rank0 = parameter.clone();
      world.broadcast(of_rank0, 0).wait();
      EXPECT_TRUE(torch::equal(parameter, of_rank0));
    }
  });
}

TEST(SharpnessAwareMinimisation, ByOwnGradientsIsFoundByTheConsistencyCheck) {
  on_ranks(2, [](const Group& world) {
    const auto model = make_model<Mlp>();
    DistributedDataParallel ddp(model, world);
    const auto backward = [&] { ddp(part_of_batch(0, world.rank())).pow(2).mean().backward(); };
    {
      const auto local = ddp.no_sync();
      backward();
    }
    const Perturbation perturbation(model->parameters());
    EXPECT_THROW(backward(), ReplicaError);
  });
}

}  // namespace
}  // namespace lockstep::testing
