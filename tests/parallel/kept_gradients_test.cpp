// Gradients that a program keeps: as in one process, a later backward changes them only if it
// accumulates into them.
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

const std::vector<std::vector<std::int64_t>> shapes{{3}, {6, 5}, {17}, {2, 2}};

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
    for (const auto& [tensor, values] : tensors_)
      EXPECT_TRUE(torch::equal(tensor, values)) << what << ": got " << tensor << "\nfor " << values;
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

SUITE_ON_RANKS(KeptGradients, 1, 2, 3);

TEST_P_ON_RANKS(KeptGradients, KeepTheirValuesUnderEveryStrategyThatAveragesGradients) {
  for (const char* text : {"fp32", "fp16", "bf16", "topk:0.3", "threshold:1", "int8",
                           "power_sgd:rank=1", "warmup:1:topk:0.3"}) {
    const auto run = [&](bool keeps, bool one_bucket) {
      auto model = make_terms(shapes);
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
        for (const auto& parameter : model->p)
          if (parameter.grad().defined()) last.push_back(parameter.grad().clone());
        model->zero_grad();
        if (step == 2) model->p[1].mutable_grad() = at::ones_like(model->p[1]);
      }
      EXPECT_EQ(kept.size() > 0, keeps);
      return last;
    };
    for (const bool one_bucket : {true, false}) {
      const auto got = run(true, one_bucket), expected = run(false, one_bucket);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(torch::equal(got[i], expected[i])) << text << i;
    }
  }
}

TEST_P_ON_RANKS(KeptGradients, KeepTheirValuesUnderEveryUpdate) {
  const DataParallelOptions plain, state_parts{.shard = Shard::optimizer};
  const DataParallelOptions gradient_parts{.shard = Shard::gradients},
      one_copy{.share_memory = true};
  for (const auto& each : {std::pair("fp32", plain),
                           {"adasum", plain},
                           {"partial_update", plain},
                           {"local_sgd:period=2", plain},
                           {"fp32", state_parts},
                           {"fp16", state_parts},
                           {"int8", state_parts},
                           {"fp32", gradient_parts},
                           {"bf16", gradient_parts},
                           {"fp32", one_copy}}) {
    const auto run = [&](bool keeps) {
      auto of_run = each.second;
      of_run.strategy = parse_strategy(each.first);
      OptimizedTerms one(world, of_run, shapes, torch::optim::SGDOptions(0.1).momentum(0.9));
      auto& optimizer = one.optimizer;
      Kept kept;
      for (int step = 1; step <= 5; ++step) {
        if (step % 2 == 0) {
          {
            const auto local = optimizer.no_sync();
            one.loss(step).backward();
          }
          if (keeps) kept.keep_all(one.model);  // this rank's own
          optimizer.zero_grad();
        }
        one.loss(step).backward();
        if (keeps) kept.keep_all(one.model);  // none with Shard::gradients
        optimizer.step();
        optimizer.zero_grad();
        if (!optimizer.replicas_may_differ()) optimizer.weight(1 + world.rank());
        optimizer.backward_and_update(one.loss());
        kept.expect_unchanged(each.first);
      }
      EXPECT_EQ(kept.size() > 0, keeps);
      optimizer.synchronize();
      std::vector<at::Tensor> parameters;
      for (const auto& parameter : one.model.p) parameters.push_back(parameter.detach().clone());
      return parameters;
    };
    const auto got = run(true), expected = run(false);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(torch::equal(got[i], expected[i])) << each.first << i;
  }
}

TEST_P_ON_RANKS(KeptGradients, ThatTheBucketWouldTakeStayThisRanksOwn) {
  for (const char* text : {"fp32", "fp16"}) {
    // Alone in its bucket, which is exchanged in the gradient's memory.
    OptimizedTerms one(world, {.strategy = parse_strategy(text), .shard = Shard::gradients},
                       {{100}});
    const auto& p = one.model.p[0];
    {
      const auto local = one.optimizer.no_sync();
      one.loss().backward();
    }
    const auto own = p.grad();
    one.loss(2).backward();  // accumulates, as in one process
    EXPECT_TRUE(torch::equal(own, 3 * coefficient(world.rank(), 0, p)));
    one.optimizer.step();
    one.optimizer.zero_grad();
    one.optimizer.backward_and_update(one.loss());
    EXPECT_TRUE(torch::equal(own, 3 * coefficient(world.rank(), 0, p)));
  }
}

TEST_P_ON_RANKS(KeptGradients, MayBeAssignedInAnotherOrderOfElements) {
  OptimizedTerms one(world, {}, {{3, 3}});
  const auto& p = one.model.p[0];
  one.loss().backward();
  p.mutable_grad() = p.grad().t();  // over the bucket's memory
  {
    const auto local = one.optimizer.no_sync();
    one.loss().backward();
  }
  one.optimizer.average_gradients();
  const auto mean = mean_coefficient(world.size(), 0, p);
  EXPECT_TRUE(near(p.grad(), mean + mean.t()));
}

TEST_ON_RANKS(KeptGradientsCost, IsNothingWhereNobodyKeepsOne, 2) {
  auto model = make_terms(shapes);
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
}

}  // namespace
}  // namespace lockstep::testing
