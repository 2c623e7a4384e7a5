// Gradients that are a rank's own when the optimizer steps: every one is averaged, or refused.
// Those that a program keeps: as in one process, a later backward changes them only if it
// accumulates into them.
#include "parallel/reducer/gradient.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using OneModel = OptimizedTerms;

SUITE_ON_RANKS(LocalGradients, 1, 2, 3, 7);

TEST_P_ON_RANKS(LocalGradients, OfAModelCalledWithoutItsWrapperAfterAConversionAreAveraged) {
  auto model = make_terms(two_shapes);
  DistributedDataParallel ddp(model, world, {.verify_every = 0});
  model->to(torch::kDouble);
  model->to(torch::kFloat);
  auto terms = coefficients(world.rank(), *model);
  model->forward(terms).backward();  // of new accumulators, which have no hooks
  for (auto& term : terms) term = at::Tensor();
  ddp(terms, at::ones({1}).requires_grad_()).backward();
  expect_means(*model, world);
}

TEST_P_ON_RANKS(LocalGradients, AreNotAveragedTwice) {
  OneModel one(world);
  for (int step = 0; step < 3; ++step) {
    one.loss().backward();
    torch::nn::utils::clip_grad_norm_(one.model.parameters(), 1e3);
    torch::nn::utils::clip_grad_value_(one.model.parameters(), 1e3);
    const auto gradient = one.model.p[0].grad().clone();
    const auto exchanges = [&] {
      std::uint64_t count = 0;
      for (const auto& row : world.statistics()) count += row.bucket >= 0 ? row.count : 0;
      return count;
    };
    const auto before = exchanges();
    one.expect_step_of(1);
    EXPECT_EQ(exchanges(), before);
    EXPECT_TRUE(torch::equal(one.model.p[0].grad(), gradient));
    one.optimizer.zero_grad();
  }
}

/// Whether a rank has a loss, where the last of several has none.
bool has_loss(int rank, int ranks) { return ranks == 1 || rank != ranks - 1; }

TEST_P_ON_RANKS(LocalGradients, OfARankWithoutALossFollowClipping) {
  OneModel one(world, {.verify_every = 0});
  const int ranks = world.size();
  const auto took_part = [ranks](int rank) { return has_loss(rank, ranks); };
  double norm = 0;
  for (std::size_t i = 0; i < one.model.p.size(); ++i)
    norm += mean_coefficient(ranks, i, one.model.p[i], took_part).square().sum().item<double>();
  norm = std::sqrt(norm);
  for (int step = 0; step < 2; ++step) {
    if (took_part(world.rank())) one.loss().backward();
    torch::nn::utils::clip_grad_norm_(one.model.parameters(), norm / 4);
    one.expect_step_of(0.25, took_part);
    one.optimizer.zero_grad();
  }
}

TEST_P_ON_RANKS(LocalGradients, AreAddedToGradientsThatTheProgramHasSetBefore) {
  OneModel one(world, {.verify_every = 0});
  const auto took_part = [&](int rank) { return has_loss(rank, world.size()); };
  one.loss().backward();
  for (const auto& p : one.model.p) p.mutable_grad() = at::ones_like(p);
  if (took_part(world.rank())) one.loss().backward();
  one.optimizer.step();
  for (std::size_t i = 0; i < one.model.p.size(); ++i) {
    const auto& p = one.model.p[i];
    EXPECT_TRUE(near(p.grad(), 1 + mean_coefficient(world.size(), i, p, took_part))) << "p" << i;
  }
}

// The rank without a loss still holds the mean that the others have zeroed.
TEST_ON_RANKS(LocalGradient, OfABackwardAfterADroppedMeanIsRefusedWhileARankIsInStep, 2, 3) {
  const bool trains = has_loss(world.rank(), world.size());
  for (const auto shard : {Shard::none, Shard::gradients}) {
    for (const auto& [set_to_none, again] :
         {std::pair(true, true), {false, true}, {true, false}, {false, false}}) {
      // A rank without a loss takes over a whole mean that the others have dropped, but not parts.
      if (shard == Shard::none && !again) continue;
      OneModel one(world, {.verify_every = 0, .shard = shard});
      const auto text = refusal([&] {
        if (trains) one.loss().backward();
        one.optimizer.zero_grad(set_to_none);
        if (trains && again) one.loss().backward();
        one.optimizer.step();
      });
      EXPECT_THAT(text, AllOf(HasSubstr("DistributedOptimizer rank"), HasSubstr("zero_grad()")));
      expect_usable(world);
    }
  }
}

TEST_ON_RANKS(LocalGradient, OfABackwardAfterAStepThatOneRankLeavesOutIsRefused, 3) {
  for (const auto& options : every_update) {
    // Parts of a mean that a rank has dropped are missed by the others' backwards, too.
    for (const bool all : {false, options.shard == Shard::gradients}) {
      OneModel one(world, options);
      expect_refused(world, "while another rank holds that mean", [&] {
        one.loss().backward();
        if (world.rank() == 0) one.optimizer.zero_grad(!all);
        if (world.rank() == 0 || all) one.loss().backward();
        one.optimizer.step();
      });
    }
  }
}

TEST_ON_RANKS(LocalGradient, OfALastStepIsRefusedOnARankWithoutALoss, 3) {
  // Unless its weight is 0.
  for (const bool has_weight : {false, true}) {
    OneModel one(world, {.verify_every = 0});
    const bool has_loss = world.rank() != 0;
    const auto took_part = [](int rank) { return rank != 0; };
    one.loss().backward();
    one.optimizer.step();
    if (has_loss) one.optimizer.zero_grad();
    if (has_weight) one.optimizer.weight(has_loss ? 1 : 0);
    const auto backward = [&] {
      if (has_loss) one.loss().backward();
    };
    if (has_weight) {
      backward();
      one.expect_step_of(1.5, took_part);
      continue;
    }
    expect_refused(world, "holds that mean", [&] {
      backward();
      one.optimizer.step();
    });
  }
}

// The weights of such a step multiplied the combination by N ÷ (ranks with a loss).
TEST_ON_RANKS(LocalGradient, OfARankWithoutALossFollowsAChangedCombination, 3) {
  OneModel one(world, {.strategy = Adasum{.of = SyncTarget::gradients}, .verify_every = 0});
  std::vector<at::Tensor> expected;
  if (has_loss(world.rank(), world.size())) {
    one.loss().backward();
    for (auto& p : one.model.p) expected.push_back(p.detach() - p.mutable_grad().mul_(0.5));
  }
  one.optimizer.step();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(near(one.model.p[i].detach(), expected[i])) << i;
}

TEST_ON_RANKS(LocalGradient, ChangedInPlaceIsRefusedUnderErrorFeedback, 2) {
  OneModel one(world, {.strategy = parse_strategy("topk:0.5")});
  one.loss().backward();
  one.model.p[1].mutable_grad().add_(world.rank());
  EXPECT_THAT(refusal([&] { one.optimizer.step(); }),
              AllOf(HasSubstr("parameter p1"), HasSubstr("changed in place")));
  expect_usable(world);
}

TEST_ON_RANKS(LocalGradient, OfAParameterOutsideTheOptimizerMayAccumulate, 2) {
  for (const char* strategy : {"topk:0.5", "int8", "power_sgd:rank=1", "fp32"}) {
    Terms model(two_shapes);
    torch::optim::SGD sgd({model.p[0]}, 1);
    DistributedOptimizer optimizer(sgd, model, world, parse_strategy(strategy));
    for (int step = 0; step < 4; ++step)
      optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
    EXPECT_TRUE(torch::equal(model.p[1].detach(), at::ones({2, 5}))) << strategy;
  }
}

TEST(GradientRecord, KeepsAMeanThatOneChangeIsAPartOf) {
  using detail::GradientState;
  const auto values = at::ones({2});
  const Bucket::Slice slice{.name = "w", .parameter = at::ones({2}), .offset = 0, .values = values};
  slice.parameter.mutable_grad() = values;
  detail::GradientRecord record(slice);
  record.set_averaged();
  values.mul_(2);
  EXPECT_EQ(record.state(), GradientState::edited);
  record.keep_average();
  EXPECT_EQ(record.state(), GradientState::averaged);
  values.mul_(2).mul_(2);
  record.keep_average();
  EXPECT_EQ(record.state(), GradientState::edited);
}

const std::vector<std::vector<std::int64_t>> kept_shapes{{3}, {6, 5}, {17}, {2, 2}};

/// Tensors over the memory of gradients, with the values that they must keep. Of each gradient one:
/// each kind must be enough for itself.
class Kept {
 public:
  void keep(const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    // The last is no view for autograd.
    const at::Tensor kinds[] = {gradient, gradient.detach(), gradient[0], gradient.view(-1),
                                gradient.variable_data()};
    const auto& tensor = kinds[tensors_.size() % std::size(kinds)];
    tensors_.emplace_back(tensor, tensor.clone());
  }
  void keep_all(const torch::nn::Module& model) {
    for (const auto& parameter : model.parameters()) keep(parameter.grad());
  }
  std::size_t size() const { return tensors_.size(); }
  void expect_unchanged() const {
    for (const auto& [tensor, values] : tensors_)
      EXPECT_TRUE(torch::equal(tensor, values)) << "got " << tensor << "\nfor " << values;
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

/// The parameters after some steps, of which the program keeps every gradient or none. Ranks: all.
std::vector<at::Tensor> trained_with(const Group& world, const DataParallelOptions& options,
                                     bool keeps) {
  OptimizedTerms one(world, options, kept_shapes, torch::optim::SGDOptions(0.1).momentum(0.9));
  auto& optimizer = one.optimizer;
  const bool means_only = !optimizer.replicas_may_differ() && !divides_update(options);
  Kept kept;
  for (int step = 1; step <= 5; ++step) {
    if (step % 2 == 0) {
      one.accumulate(step);
      if (keeps) kept.keep_all(one.model);  // this rank's own
      optimizer.zero_grad();
    }
    auto terms = coefficients(world.rank(), one.model);
    if (means_only && step == 3) {
      one.model.p[1].mutable_grad() = at::ones_like(one.model.p[1]);
      terms[1] = at::Tensor();                         // on no rank
      if (world.rank() == 0) terms[2] = at::Tensor();  // on the others
    }
    (step * one.model.forward(terms)).backward();
    // None with Shard::gradients.
    if (keeps && (!means_only || step != 2 || world.rank() == 0)) kept.keep_all(one.model);
    optimizer.step();
    optimizer.zero_grad();
    if (!optimizer.replicas_may_differ()) optimizer.weight(1 + world.rank());
    optimizer.backward_and_update(one.loss());
    kept.expect_unchanged();
  }
  EXPECT_EQ(kept.size() > 0, keeps);
  optimizer.synchronize();
  return copies_of(one.model.p);
}

void expect_kept(const Group& world, DataParallelOptions options,
                 const std::vector<const char*>& strategies) {
  for (const char* text : strategies) {
    SCOPED_TRACE(text);
    options.strategy = parse_strategy(text);
    for (const auto& buckets : {BucketCaps{}, one_each.buckets}) {
      options.buckets = buckets;
      const auto got = trained_with(world, options, true);
      expect_equal_tensors(got, trained_with(world, options, false));
    }
  }
}

SUITE_ON_RANKS(KeptGradients, 1, 2, 3);

TEST_P_ON_RANKS(KeptGradients, KeepTheirValuesUnderEveryStrategyThatAveragesGradients) {
  expect_kept(world, {},
              {"fp32", "fp16", "bf16", "topk:0.3", "threshold:1", "int8", "power_sgd:rank=1",
               "warmup:1:topk:0.3"});
}

TEST_P_ON_RANKS(KeptGradients, KeepTheirValuesUnderEveryUpdate) {
  expect_kept(world, {}, {"adasum", "partial_update", "local_sgd:period=2"});
  expect_kept(world, {.shard = Shard::optimizer}, {"fp32", "fp16", "int8"});
  expect_kept(world, {.shard = Shard::gradients}, {"fp32", "bf16"});
  expect_kept(world, {.share_memory = true}, {"fp32"});
}

TEST_P_ON_RANKS(KeptGradients, ThatTheBucketWouldTakeStayThisRanksOwn) {
  for (const char* text : {"fp32", "fp16"}) {
    // Alone in its bucket, which is exchanged in the gradient's memory.
    OptimizedTerms one(world, {.strategy = parse_strategy(text), .shard = Shard::gradients},
                       {{100}});
    const auto& p = one.model.p[0];
    one.accumulate();
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
  one.accumulate();
  one.optimizer.average_gradients();
  const auto mean = mean_coefficient(world.size(), 0, p);
  EXPECT_TRUE(near(p.grad(), mean + mean.t()));
}

TEST_ON_RANKS(KeptGradientsCost, IsNothingWhereNobodyKeepsOne, 2) {
  auto model = make_terms(kept_shapes);
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
