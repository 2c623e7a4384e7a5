// Sparse gradients of Embedding and EmbeddingBag are averaged as dense ones are.
#include "tests/parallel/trainings.h"
#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"

namespace lockstep::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr std::int64_t vocabulary = 12;

/// Words and bags of words. Both layers have sparse gradients, or both have dense ones.
struct Words : torch::nn::Module {
  explicit Words(bool sparse, at::ScalarType dtype = at::kDouble)
      : words(register_module(
            "words",
            torch::nn::Embedding(torch::nn::EmbeddingOptions(vocabulary, 3).sparse(sparse)))),
        bags(register_module(
            "bags",
            torch::nn::EmbeddingBag(
                torch::nn::EmbeddingBagOptions(vocabulary, 3).sparse(sparse).mode(torch::kSum)))),
        out(register_module("out", torch::nn::Linear(3, 2))) {
    to(dtype);
    set_values(*this, 5);
  }
  /// Shapes: tokens [n], also n = 0.
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = words->forward(tokens).sum(0);
    if (tokens.numel() > 0) x = x + bags->forward(tokens.unsqueeze(0)).sum(0);
    return out->forward(x.tanh()).pow(2).sum();
  }
  torch::nn::Embedding words;
  torch::nn::EmbeddingBag bags;
  torch::nn::Linear out;
};

/// A rank's tokens: unequal numbers of rows, some twice, some on several ranks, none on one rank.
at::Tensor tokens_of(int rank, int step) {
  const std::int64_t count = 3 * ((rank + step) % 4);
  return (at::arange(count, at::kLong) * (rank + 2) + step).remainder(vocabulary);
}

at::Tensor dense(const at::Tensor& gradient) {
  return gradient.layout() == at::kSparse ? gradient.to_dense() : gradient;
}

void expect_dense_means(const Group& world) {
  auto model = std::make_shared<Words>(true);
  DistributedDataParallel ddp(model, world, one_each);
  for (int step = 0; step < 5; ++step) {
    Words whole(false);
    for (int rank = 0; rank < world.size(); ++rank)
      (whole.forward(tokens_of(rank, step)) / world.size()).backward();
    model->zero_grad();
    ddp(tokens_of(world.rank(), step)).backward();
    for (const auto& name : {"words.weight", "bags.weight", "out.weight"}) {
      const auto gradient = model->named_parameters()[name].grad();
      const auto expected = whole.named_parameters()[name].grad();
      if (!expected.defined()) {
        // No rank has used the parameter.
        EXPECT_TRUE(!gradient.defined() || dense(gradient).norm().item<double>() == 0) << name;
        continue;
      }
      ASSERT_TRUE(gradient.defined()) << name;
      EXPECT_LT(distance(dense(gradient), expected), 1e-12) << name << ", step " << step;
      if (std::string(name) == "out.weight") continue;
      EXPECT_TRUE(gradient.is_sparse() && gradient.is_coalesced());
      EXPECT_LE(gradient._nnz(), vocabulary);
      EXPECT_TRUE(same_on_all_ranks(gradient._indices(), world));
      EXPECT_TRUE(same_on_all_ranks(gradient._values(), world));
    }
  }
}

SUITE_ON_RANKS(Sparse, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(Sparse, MeanIsThatOfDenseGradientsInOneProcess) { expect_dense_means(world); }

TEST(SparseBetweenHosts, MeanIsThatOfDenseGradientsInOneProcess) {
  on_ranks(4, [](const Group& world) { expect_dense_means(on_hosts(world, {0, 0, 1, 1})); });
  on_ranks(3, [](const Group& world) { expect_dense_means(on_hosts(world, {0, 0, 1})); });
}

/// Trains both kinds of Words on each rank by the same program, and compares the parameters.
void expect_as_dense(const Group& world, const std::function<void(Words&)>& program) {
  Words sparse(true), dense(false);
  program(sparse);
  program(dense);
  const Words before(false);
  for (std::size_t i = 0; i < dense.parameters().size(); ++i) {
    EXPECT_LT(distance(sparse.parameters()[i], dense.parameters()[i]), 1e-12) << i;
    EXPECT_GT(distance(before.parameters()[i], dense.parameters()[i]), 1e-6) << i;
    EXPECT_TRUE(same_on_all_ranks(sparse.parameters()[i], world)) << i;
  }
}

TEST_P_ON_RANKS(Sparse, SgdWithMomentumAndAdagradTrainAsWithDenseGradients) {
  for (const auto& make : {one_group<SGD>(SGDOptions(0.05).momentum(0.9)),
                           one_group<FusedSgd>(SGDOptions(0.05).momentum(0.9)),
                           one_group<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05))}) {
    expect_as_dense(world, [&](Words& model) {
      const auto base = make(model.parameters());
      DistributedOptimizer optimizer(*base, model, world);
      for (int step = 0; step < 8; ++step)
        optimizer.backward_and_update(model.forward(tokens_of(world.rank(), step)));
    });
  }
}

TEST_P_ON_RANKS(Sparse, AccumulatesWeighsScalesAndSkips) {
  expect_as_dense(world, [&](Words& model) {
    const int rank = world.rank();
    SGD sgd(model.parameters(), SGDOptions(0.02));
    DistributedOptimizer optimizer(sgd, model, world);
    const auto loss = [&](int step) { return model.forward(tokens_of(rank, step)); };
    for (int step = 0; step < 8; ++step) {
      switch (step) {
        case 0:  // accumulates, and exchanges in step()
          without_sync(optimizer, [&] { loss(10).backward(); });
          without_sync(optimizer, [&] { loss(11).backward(); });
          break;
        case 1:  // accumulates before a backward that exchanges
          without_sync(optimizer, [&] { loss(12).backward(); });
          loss(13).backward();
          break;
        case 2:  // weights, of which one is 0
          optimizer.weight(rank == 0 && world.size() > 1 ? 0 : rank + 1.5);
          loss(14).backward();
          break;
        case 3:  // adds to the mean
          loss(15).backward();
          loss(16).backward();
          break;
        case 4:  // a rank without a loss
          if (rank != world.size() - 1 || world.size() == 1) loss(17).backward();
          break;
        case 5:  // frozen
          model.words->weight.requires_grad_(false);
          loss(18).backward();
          model.words->weight.requires_grad_(true);
          break;
        case 6:  // scaled alike on all ranks
          loss(19).backward();
          for (const auto& parameter : model.parameters())
            if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.3);
          break;
        default:  // gradients set by hand on one rank
          loss(20).backward();
          if (rank == 0) {
            for (const auto& parameter : model.parameters())
              if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 2;
          }
      }
      optimizer.step();
      optimizer.zero_grad(step % 2 == 0);
    }
  });
}

TEST_P_ON_RANKS(Sparse, IsClippedByTheNormOfAllGradients) {
  for (const auto shard : {Shard::none, Shard::optimizer, Shard::gradients}) {
    expect_as_dense(world, [&](Words& model) {
      const bool sparse = model.words->options.sparse();
      SGD sgd(model.parameters(), SGDOptions(2));
      DistributedOptimizer optimizer(sgd, model, world, {.shard = sparse ? shard : Shard::none});
      for (int step = 0; step < 4; ++step) {
        model.forward(tokens_of(world.rank(), step)).backward();
        const double norm = sparse ? clip_grad_norm(optimizer, 0.01)
                                   : torch::nn::utils::clip_grad_norm_(model.parameters(), 0.01);
        EXPECT_GT(norm, 0.01);
        optimizer.step();
        optimizer.zero_grad();
      }
      optimizer.backward_and_update(0.01 * model.forward(tokens_of(world.rank(), 4)));
    });
  }
}

TEST_P_ON_RANKS(Sparse, GradientsOfAModelWithoutDenseOnes) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto table = at::ones({5, 2}, dtype).requires_grad_();
    DistributedDataParallel ddp(ModelView({{"table", table}}), world,
                                {.sparse_gradients = {"table"}});
    for (int step = 0; step < 2; ++step) {
      table.mutable_grad().reset();
      // Row 1 three times on each rank, row 4 on rank 0 only.
      auto rows = at::tensor({1, 1, 1}, at::kLong);
      if (world.rank() == 0) rows = at::tensor({1, 4, 1, 1}, at::kLong);
      ddp([&] { return torch::embedding(table, rows, -1, false, true); }).sum().backward();
      auto expected = at::zeros({5, 2});
      expected[1] = 3;
      expected[4] = 1.0 / world.size();
      EXPECT_TRUE(torch::allclose(table.grad().to_dense().to(at::kFloat), expected, 1e-2));
    }
  }
}

TEST_ON_RANKS(SparseStrategies, AverageSparseGradientsExactly, 3) {
  for (const auto* strategy :
       {"fp16", "bf16", "topk:0.2", "threshold:0.01", "int8", "power_sgd:1", "partial_update",
        "partial_update:of=gradients", "local_sgd:period=3", "post_local_sgd:start=2", "adasum",
        "warmup:1:topk:0.2"}) {
    Words model(true, at::kFloat);
    SGD sgd(model.parameters(), SGDOptions(0.1));
    DistributedOptimizer optimizer(
        sgd, model, world, {.buckets = one_each.buckets, .strategy = parse_strategy(strategy)});
    // The embeddings do not depend on the other parameters, which differ between ranks until they
    // are averaged.
    const auto loss = [](Words& of, int rank, int step) {
      return of.words->forward(tokens_of(rank, step)).pow(2).sum() +
             (1 + rank) * of.out->weight.pow(2).sum();
    };
    Words whole(false, at::kFloat);
    SGD expected(whole.parameters(), SGDOptions(0.1));
    for (int step = 0; step < 5; ++step) {
      optimizer.backward_and_update(loss(model, world.rank(), step));
      expected.zero_grad();
      for (int rank = 0; rank < 3; ++rank) (loss(whole, rank, step) / 3).backward();
      expected.step();
      EXPECT_LT(distance(model.words->weight, whole.words->weight), 1e-6) << strategy;
    }
    optimizer.synchronize();
    EXPECT_TRUE(same_on_all_ranks(model.out->weight, world)) << strategy;
  }
}

TEST_ON_RANKS(SparseRefusal, OfModelsThatDifferIsOnEveryRank, 2) {
  const auto model = std::make_shared<Words>(world.rank() == 0);
  EXPECT_THAT(refusal([&] { DistributedDataParallel ddp(model, world); }),
              HasSubstr("parameter words.weight Double [12, 3] with sparse gradients on rank 0; "
                        "parameter words.weight Double [12, 3] on rank 1"));
  EXPECT_THAT(refusal([&] {
                DistributedDataParallel ddp(std::make_shared<Words>(false), world,
                                            {.sparse_gradients = {"word.weight"}});
              }),
              HasSubstr("sparse_gradients: got 'word.weight', expected the name of a parameter"));
  Words sparse(true);
  FusedSgd fused(sparse.parameters(), SGDOptions(0.1));
  expect_refused(world, "share_memory: parameter words.weight has sparse gradients", [&] {
    DistributedOptimizer optimizer(fused, sparse, world, {.share_memory = true});
  });
}

/// Rank 0 uses the table by sparse gradients, rank 1 by dense ones.
struct Disputed : torch::nn::Module {
  at::Tensor forward(bool sparse) {
    return torch::embedding(table, at::tensor({0, 2, 2}), -1, false, sparse).sum() + other.sum();
  }
  at::Tensor other = register_parameter("other", at::ones({4}));
  at::Tensor table = register_parameter("table", at::ones({3, 2}));
};

TEST_ON_RANKS(SparseRefusal, OfGradientsThatDifferIsOnEveryRankAndTrainingContinues, 2) {
  for (const bool declared : {false, true}) {
    const auto model = std::make_shared<Disputed>();
    DataParallelOptions options = one_each;
    if (declared) options.sparse_gradients = {"table"};
    DistributedDataParallel ddp(model, world, options);
    const auto message = refusal([&] { ddp(world.rank() == 0).backward(); });
    EXPECT_THAT(message, HasSubstr("parameter table"));
    if (declared) {
      EXPECT_THAT(message, AllOf(HasSubstr("got another gradient on rank 1, expected sparse"),
                                 HasSubstr("set sparse = false")));
    } else {
      const bool is_here = world.rank() == 0;
      const auto* where = is_here ? "Sparse on this rank" : "sparse gradient on another rank";
      EXPECT_THAT(message, AllOf(HasSubstr("expected a dense one"), HasSubstr(where),
                                 HasSubstr("sparse_gradients")));
    }
    model->zero_grad();
    ddp(declared).backward();
    EXPECT_EQ(dense(model->table.grad()).sum().item<float>(), 6);
    EXPECT_EQ(model->other.grad().sum().item<float>(), 4);
  }
}

TEST_ON_RANKS(SparseRefusal, OfGradientsSetByHandIsOnEveryRank, 2) {
  Words model(true);
  SGD sgd(model.parameters(), SGDOptions(0.1));
  DistributedOptimizer optimizer(sgd, model, world);
  if (world.rank() == 1) {
    model.words->weight.mutable_grad() = at::ones_like(model.words->weight);
    model.out->weight.mutable_grad() = at::ones_like(model.out->weight).to_sparse();
  }
  EXPECT_THAT(refusal([&] { optimizer.step(); }),
              AllOf(HasSubstr("parameter out.weight"), HasSubstr("expected a dense one")));
  model.out->weight.mutable_grad().reset();
  EXPECT_THAT(refusal([&] { optimizer.step(); }),
              AllOf(HasSubstr("parameter words.weight"),
                    HasSubstr("got another gradient on rank 1, expected sparse")));
  optimizer.zero_grad();
  optimizer.backward_and_update(model.forward(tokens_of(world.rank(), 1)));
  EXPECT_TRUE(same_on_all_ranks(model.words->weight, world));
}

TEST_ON_RANKS(SparseConsistency, ComparesTheRowsThatWereAveraged, 2) {
  const auto model = std::make_shared<Words>(true);
  DistributedDataParallel ddp(model, world);
  const auto step = [&] {
    model->zero_grad();
    ddp(at::tensor({3, 7}, at::kLong)).backward();
  };
  for (int i = 0; i < 4; ++i) step();
  if (world.rank() == 1) model->words->weight.detach()[7] += 1;
  const auto error = message_of<ReplicaError>([&] {
    for (int i = 0; i < 3; ++i) step();  // one bucket, two sparse parameters
  });
  EXPECT_THAT(error, HasSubstr("parameter words.weight"));
}

}  // namespace
}  // namespace lockstep::testing
