// Gradients that a program keeps: as in one process, a later backward changes them only if it
// accumulates into them.

#include <utility>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategy.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

const std::vector<std::vector<std::int64_t>> shapes{{3}, {6, 5}, {17}, {2, 2}};
const std::vector<std::vector<std::int64_t>> one_vector(1, {100});
const std::vector<std::vector<std::int64_t>> one_square(1, {3, 3});

/// Tensors over the memory of gradients, with the values that they must keep. Of each gradient one:
/// each kind must be enough for itself.
class Kept {
 public:
  void keep(const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    const auto tensor = [&] {
      switch (tensors_.size() % 5) {
        case 0:
          return gradient;
        case 1:
          return gradient.detach();
        case 2:
          return gradient[0];
        case 3:
          return gradient.view(-1);
        default:
          return gradient.variable_data();  // no view for autograd
      }
    }();
    tensors_.emplace_back(tensor, tensor.clone());
  }
  void keep_all(const torch::nn::Module& model) {
    for (const auto& parameter : model.parameters()) keep(parameter.grad());
  }
  std::size_t size() const { return tensors_.size(); }
  void expect_unchanged(const std::string& what) const {
    for (const auto& [tensor, values] : tensors_) {
      EXPECT_TRUE(torch::equal(tensor, values)) << what << ": got " << tensor << "\nfor " << values;
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

at::Tensor loss_of(Terms& model, const Group& world, double times) {
  return times * model.forward(coefficients(world.rank(), model));
}

class KeptGradients : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, KeptGradients, ::testing::Values(1, 2, 3));

TEST_P(KeptGradients, KeepTheirValuesUnderEveryStrategyThatAveragesGradients) {
  for (const char* text : {"fp32", "fp16", "bf16", "topk:0.3", "threshold:1", "int8",
                           "power_sgd:rank=1", "warmup:1:topk:0.3"}) {
    on_ranks(GetParam(), [&](const Group& world) {
      const auto run = [&](bool keeps, bool one_bucket) {
        auto model = std::make_shared<Terms>(shapes);
        DataParallelOptions options{.strategy = parse_strategy(text)};
        if (!one_bucket) options.buckets = one_each.buckets;
        DistributedDataParallel ddp(model, world, options);
        Kept kept;
        std::vector<at::Tensor> last;
        for (int step = 1; step <= 4; ++step) {
          auto terms = coefficients(world.rank(), *model);
          if (step == 3) terms[1] = at::Tensor();                       // on no rank
          if (step == 3 && world.rank() == 0) terms[2] = at::Tensor();  // on the others
          (step * ddp(terms)).backward();
          if (keeps && (step != 2 || world.rank() == 0)) kept.keep_all(*model);
          kept.expect_unchanged(text);
          last.clear();
          for (const auto& parameter : model->p) {
            if (parameter.grad().defined()) last.push_back(parameter.grad().clone());
          }
          model->zero_grad();
          if (step == 2) model->p[1].mutable_grad() = at::ones_like(model->p[1]);
        }
        EXPECT_EQ(kept.size() > 0, keeps);
        return last;
      };
      for (const bool one_bucket : {true, false}) {
        const auto got = run(true, one_bucket);
        const auto expected = run(false, one_bucket);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(torch::equal(got[i], expected[i])) << text << i;
      }
    });
  }
}

TEST_P(KeptGradients, KeepTheirValuesUnderEveryUpdate) {
  struct Case {
    std::string strategy;
    DataParallelOptions options;
  };
  const DataParallelOptions plain;
  for (const auto& [strategy, options] :
       {Case{"fp32", plain}, Case{"adasum", plain}, Case{"partial_update", plain},
        Case{"local_sgd:period=2", plain}, Case{"fp32", {.shard = Shard::optimizer}},
        Case{"fp16", {.shard = Shard::optimizer}}, Case{"int8", {.shard = Shard::optimizer}},
        Case{"fp32", {.shard = Shard::gradients}}, Case{"bf16", {.shard = Shard::gradients}},
        Case{"fp32", {.share_memory = true}}}) {
    on_ranks(GetParam(), [&, text = strategy, with = options](const Group& world) {
      const auto run = [&](bool keeps) {
        auto of_run = with;
        of_run.strategy = parse_strategy(text);
        Terms model(shapes);
        torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        DistributedOptimizer optimizer(sgd, model, world, of_run);
        Kept kept;
        for (int step = 1; step <= 5; ++step) {
          if (step % 2 == 0) {
            {
              const auto local = optimizer.no_sync();
              loss_of(model, world, step).backward();
            }
            if (keeps) kept.keep_all(model);  // this rank's own
            optimizer.zero_grad();
          }
          loss_of(model, world, step).backward();
          if (keeps) kept.keep_all(model);  // none with Shard::gradients
          optimizer.step();
          optimizer.zero_grad();
          if (!optimizer.replicas_may_differ()) optimizer.weight(1 + world.rank());
          optimizer.backward_and_update(loss_of(model, world, 1));
          kept.expect_unchanged(text);
        }
        EXPECT_EQ(kept.size() > 0, keeps);
        optimizer.synchronize();
        std::vector<at::Tensor> parameters;
        for (const auto& parameter : model.p) parameters.push_back(parameter.detach().clone());
        return parameters;
      };
      const auto got = run(true);
      const auto expected = run(false);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(torch::equal(got[i], expected[i])) << text << i;
    });
  }
}

TEST_P(KeptGradients, ThatTheBucketWouldTakeStayThisRanksOwn) {
  for (const char* text : {"fp32", "fp16"}) {
    on_ranks(GetParam(), [&](const Group& world) {
      Terms model(one_vector);  // alone in its bucket, which is exchanged in the gradient's memory
      torch::optim::SGD sgd(model.parameters(), 1);
      DistributedOptimizer optimizer(sgd, model, world,
                                     {.strategy = parse_strategy(text), .shard = Shard::gradients});
      {
        const auto local = optimizer.no_sync();
        loss_of(model, world, 1).backward();
      }
      const auto own = model.p[0].grad();
      loss_of(model, world, 2).backward();  // accumulates, as in one process
      EXPECT_TRUE(torch::equal(own, 3 * coefficient(world.rank(), 0, model.p[0])));
      optimizer.step();
      optimizer.zero_grad();
      optimizer.backward_and_update(loss_of(model, world, 1));
      EXPECT_TRUE(torch::equal(own, 3 * coefficient(world.rank(), 0, model.p[0])));
    });
  }
}

TEST_P(KeptGradients, AreRightInAGraphThatSavedThem) {
  on_ranks(GetParam(), [](const Group& world) {
    auto model = std::make_shared<Terms>(shapes);
    DistributedDataParallel ddp(model, world);
    ddp(coefficients(world.rank(), *model)).backward();
    const auto mean = mean_coefficient(world.size(), 1, model->p[1]);
    const auto x = at::ones_like(model->p[1]).requires_grad_();
    const auto y = (model->p[1].grad() * x).sum();
    model->zero_grad();
    (3 * ddp(coefficients(world.rank(), *model))).backward();
    y.backward();
    EXPECT_TRUE(near(x.grad(), mean));
    expect_means(*model, world, 3);
  });
}

TEST_P(KeptGradients, MayBeAssignedInAnotherOrderOfElements) {
  on_ranks(GetParam(), [](const Group& world) {
    Terms model(one_square);
    torch::optim::SGD sgd(model.parameters(), 1);
    DistributedOptimizer optimizer(sgd, model, world);
    loss_of(model, world, 1).backward();
    auto& gradient = model.p[0].mutable_grad();
    gradient = gradient.t();  // over the bucket's memory
    {
      const auto local = optimizer.no_sync();
      loss_of(model, world, 1).backward();
    }
    optimizer.average_gradients();
    const auto mean = mean_coefficient(world.size(), 0, model.p[0]);
    EXPECT_TRUE(near(model.p[0].grad(), mean + mean.t()));
  });
}

TEST(KeptGradientsCost, IsNothingWhereNobodyKeepsOne) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(shapes);
    DistributedDataParallel ddp(model, world);
    const auto backward = [&] {
      model->zero_grad();
      ddp(coefficients(world.rank(), *model)).backward();
      std::vector<std::pair<const void*, const void*>> tensors;
      for (const auto& parameter : model->p) {
        const auto& gradient = parameter.grad();
        tensors.emplace_back(gradient.unsafeGetTensorImpl(), gradient.const_data_ptr());
      }
      return tensors;
    };
    const auto first = backward();
    EXPECT_EQ(backward(), first);
    const auto kept = model->p[2].grad();
    const auto after = backward();
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(after[i].first != first[i].first, i == 2);  // another tensor …
      EXPECT_EQ(after[i].second, first[i].second);          // … in the same place
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
