// Gradients with NaN or Inf, which check_finite finds before they are averaged.
#include <limits>

#include "tests/parallel/models.h"
#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"

namespace lockstep::testing {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
const std::vector<std::vector<std::int64_t>> shapes{{3}, {12, 10}, {17}, {1}};

/// The coefficients of a rank, of which one is not finite.
std::vector<at::Tensor> with(double value, const std::vector<at::Tensor>& coefficients,
                             std::size_t index = 1) {
  auto changed = coefficients;
  changed[index] = changed[index].clone();
  changed[index].view(-1)[-1].fill_(value);
  return changed;
}

/// Expects the error of p1 on that rank, with its fields.
void expect_not_finite(const Group& world, int culprit, const std::function<void()>& fn,
                       const std::string& what = "the gradient of parameter p1") {
  const auto error = thrown_by<InvalidArgument>(fn);
  const auto text = detail::concat("check_finite rank ", world.rank(), " of ", world.size(), ": ",
                                   what, " on rank ", culprit, " has NaN or Inf");
  EXPECT_THAT(error.what(), HasSubstr(text));
  EXPECT_EQ(error.rank(), culprit);
  EXPECT_EQ(error.cause().empty(), world.rank() == culprit);
}

struct Training : OptimizedTerms {
  Training(const Group& world, const DataParallelOptions& options)
      : OptimizedTerms(world, options, shapes, torch::optim::SGDOptions(0.01).momentum(0.9)) {}

  at::Tensor loss_with(double value) {
    return model.forward(with(value, coefficients(group.rank(), model)));
  }
  /// A copy of all parameters, in a row.
  at::Tensor values() const { return torch::nn::utils::parameters_to_vector(model.p).detach(); }
};

/// Trains with a gradient of rank 2 that is not finite in the third and fourth step, and without
/// these steps. Ranks: all.
void expect_left_out(const Group& world, DataParallelOptions options, bool same_bits = true) {
  options.check_finite = true;
  Training attacked(world, options);
  options.check_finite = false;
  Training other(world, options);
  const auto both = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      for (auto* training : {&attacked, &other})
        training->optimizer.backward_and_update(training->loss(1 + step));
    }
  };
  both(2);
  const auto before = attacked.values();
  const auto loss = [&](double value) {
    return world.rank() == 2 ? attacked.loss_with(value) : attacked.loss();
  };
  expect_not_finite(world, 2, [&] { attacked.optimizer.backward_and_update(loss(nan)); });
  attacked.optimizer.zero_grad();
  // Two calls, and an infinite value.
  expect_not_finite(world, 2, [&] {
    loss(-infinity).backward();
    attacked.optimizer.step();
  });
  attacked.optimizer.zero_grad();
  world.barrier().wait();  // with share_memory, other ranks must not have begun to update
  EXPECT_TRUE(torch::equal(attacked.values(), before));
  expect_usable(world.host());
  both(5);
  EXPECT_TRUE(attacked.values().isfinite().all().item<bool>());
  for (const auto& [name, values] : attacked.optimizer.state())
    EXPECT_TRUE(values.isfinite().all().item<bool>()) << name;
  world.barrier().wait();
  EXPECT_TRUE(!same_bits || torch::equal(attacked.values(), other.values()));
  EXPECT_TRUE(attacked.optimizer.replicas_may_differ() ||
              same_on_all_ranks(attacked.values(), world));
}

constexpr BucketCaps two_buckets{.first = 200, .rest = 1000};

TEST_ON_RANKS(CheckFinite, LeavesAStepOutWithEveryStrategy, 3) {
  for (const char* text : {"fp32", "fp16", "bf16", "adasum", "adasum:of=gradients",
                           "partial_update", "partial_update:of=gradients", "local_sgd:period=3",
                           "post_local_sgd:start=2,period=3", "post_local_sgd:start=3,period=2"}) {
    SCOPED_TRACE(text);
    expect_left_out(world, {.buckets = two_buckets, .strategy = parse_strategy(text)});
  }
  // The residuals have the other gradients of the steps that were left out.
  for (const char* text : {"topk:0.1", "threshold:0.5", "int8", "power_sgd:rank=1",
                           "topk:0.1,feedback=off", "warmup:3:topk:0.1"}) {
    SCOPED_TRACE(text);
    expect_left_out(world, {.buckets = two_buckets, .strategy = parse_strategy(text)}, false);
  }
}

TEST_ON_RANKS(CheckFinite, LeavesAStepOutWithEveryStateInPartsOrShared, 3) {
  // A bucket of each parameter is exchanged in the memory of the gradient.
  for (const auto& buckets : {two_buckets, one_each.buckets}) {
    expect_left_out(world, {.buckets = buckets});
    expect_left_out(world, {.buckets = buckets, .shard = Shard::optimizer});
    expect_left_out(world, {.buckets = buckets, .shard = Shard::gradients});
    expect_left_out(world, {.buckets = buckets, .share_memory = true});
  }
}

TEST(CheckFinite, NamesRankAndParameterBetweenHosts) {
  for (const char* text : {"fp32", "topk:0.5", "local_sgd:period=2"}) {
    SCOPED_TRACE(text);
    spawn(4, [&](const Group& threads) {
      at::set_num_threads(1);
      expect_left_out(on_hosts(threads, {0, 0, 1, 1}),
                      {.buckets = two_buckets, .strategy = parse_strategy(text)}, false);
    });
  }
}

TEST_ON_RANKS(CheckFinite, TestsEveryDtypeAndNoFiniteNumberIsRefused, 2) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(toString(dtype));
    auto model = make_terms(shapes, dtype);
    DistributedDataParallel ddp(model, world, {.check_finite = true});
    const auto own = coefficients(world.rank(), *model);
    for (const double value : {nan, infinity, -infinity}) {
      expect_not_finite(world, 1,
                        [&] { ddp(world.rank() == 1 ? with(value, own) : own).backward(); });
      model->zero_grad();
    }
    // The sum of these is infinite; the mean over ranks is finite.
    auto large = own;
    const double most = dtype == at::kHalf       ? 6e4
                        : dtype == at::kDouble   ? 1e308
                        : dtype == at::kBFloat16 ? 1e38
                                                 : 3e38;
    large[1] = at::full_like(own[1], world.rank() == 0 ? most : 0);
    ddp(large).backward();
    EXPECT_TRUE(model->p[1].grad().isfinite().all().item<bool>());
    EXPECT_GT(model->p[1].grad().max().item<double>(), most / 3);
  }
}

TEST_ON_RANKS(CheckFinite, TestsWhatIsExchangedAndNamesAllRanks, 3) {
  auto model = make_terms(shapes);
  DistributedDataParallel ddp(model, world, {.check_finite = true});
  const auto own = coefficients(world.rank(), *model);
  // p2 comes before p1 in the order of the backward.
  const auto terms = world.rank() == 1 ? own : with(nan, with(nan, own, 2), 1);
  const auto error = thrown_by<InvalidArgument>([&] { ddp(terms).backward(); });
  EXPECT_THAT(error.what(), HasSubstr("of parameter p2 on ranks 0, 2 has NaN or Inf, as have "
                                      "those of 1 other parameter"));
  EXPECT_EQ(error.rank(), 0);
  EXPECT_EQ(error.operation(), "backward");
  model->zero_grad();
  // Not the gradients of a rank of weight 0.
  const auto mine = world.rank() == 0 ? with(nan, own) : own;
  ddp.weight(world.rank());
  ddp(mine).backward();
  EXPECT_TRUE(near(model->p[1].grad(),
                   (coefficient(1, 1, model->p[1]) + 2 * coefficient(2, 1, model->p[1])) / 3));
  model->zero_grad();
  ddp.weight(world.rank() + 1);
  expect_not_finite(world, 0, [&] { ddp(mine).backward(); });
  model->zero_grad();
  // The sum that was accumulated.
  without_sync(ddp, [&] { ddp(world.rank() == 0 ? with(infinity, own) : own).backward(); });
  expect_not_finite(world, 0, [&] { ddp(own).backward(); });
}

TEST_ON_RANKS(CheckFinite, IsRaisedOnARankWithoutALoss, 3) {
  Training training(world, {.check_finite = true});
  const auto before = training.values();
  expect_not_finite(world, 2, [&] {
    training.optimizer.backward_and_update(world.rank() == 0   ? at::Tensor()
                                           : world.rank() == 1 ? training.loss()
                                                               : training.loss_with(nan));
  });
  training.optimizer.zero_grad();
  EXPECT_TRUE(torch::equal(training.values(), before));
  training.optimizer.backward_and_update(training.loss());
  EXPECT_TRUE(same_on_all_ranks(training.model.p[1].detach(), world));
}

TEST_ON_RANKS(CheckFinite, TestsSparseGradients, 3) {
  torch::nn::Embedding words(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  set_values(*words, 1);
  DistributedDataParallel ddp(words, world, {.check_finite = true});
  const auto tokens = at::full({2}, world.rank(), at::kLong);
  expect_not_finite(
      world, 1, [&] { (ddp(tokens).sum() * (world.rank() == 1 ? infinity : 1)).backward(); },
      "the gradient of parameter weight");
  words->zero_grad();
  ddp(tokens).sum().backward();
  // Each rank has used one row twice.
  EXPECT_TRUE(near(words->weight.grad().to_dense().narrow(0, 0, 3), at::full({3, 2}, 2 / 3.)));
}

}  // namespace
}  // namespace lockstep::testing
