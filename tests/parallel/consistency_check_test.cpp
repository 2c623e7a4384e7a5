// Replicas that must be equal and are not.
#include "parallel/reducer/consistency_check.h"

#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

DataParallelOptions every(std::int64_t n) {
  return {.buckets = {.first = 0, .rest = 0}, .verify_every = n};
}

/// Changes one bit of one element on this rank only.
void flip(const at::Tensor& parameter, std::int64_t element, int bit) {
  auto* word = static_cast<std::uint32_t*>(parameter.data_ptr()) + element;
  *word ^= std::uint32_t{1} << bit;
}

/// The steps until backward throws, and what it says.
struct Found {
  int steps = 0;
  std::string text;
  int rank = -1;
};

Found train_until_found(DistributedDataParallel<Terms>& ddp, Terms& model, int rank, int at_most) {
  for (int step = 1; step <= at_most; ++step) {
    model.zero_grad();
    try {
      ddp(coefficients(rank, model)).backward();
    } catch (const ReplicaError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::replica);
      EXPECT_EQ(error.operation(), "consistency check");
      return {step, error.what(), error.rank()};
    }
  }
  return {};
}

SUITE_ON_RANKS(PlantedBit, 2, 3, 4, 7);

TEST_P_ON_RANKS(PlantedBit, IsNamedWithinOneRotation) {
  for (std::size_t i = 0; i < some_shapes.size(); ++i) {
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world, every(1));
    EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 2 * 4).steps, 0);
    const int wrong = world.size() - 1;
    if (world.rank() == wrong) flip(model->p[i], 0, static_cast<int>(i));
    const auto [steps, text, rank] = train_until_found(ddp, *model, world.rank(), 4);
    EXPECT_GT(steps, 0) << "not found";
    EXPECT_EQ(rank, wrong);
    EXPECT_THAT(text, AllOf(HasSubstr("parameter p" + std::to_string(i) + " with checksum"),
                            HasSubstr("on rank " + std::to_string(wrong)),
                            HasSubstr("in bucket " + std::to_string(some_shapes.size() - 1 - i)),
                            HasSubstr("no_sync()"), HasSubstr("learning rate of one rank")));
    // Once mended, training goes on.
    if (world.rank() == wrong) flip(model->p[i], 0, static_cast<int>(i));
    EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 4).steps, 0);
    EXPECT_TRUE(near(model->p[1].grad(), mean_coefficient(world.size(), 1, model->p[1])));
  }
}

TEST_ON_RANKS(ConsistencyCheck, ComparesAtEveryNthExchangeOrNever, 2) {
  {
    auto model = make_terms({{5}});
    DistributedDataParallel third(model, world, every(3));
    EXPECT_EQ(train_until_found(third, *model, world.rank(), 1).steps, 0);  // compares exchange 0
    if (world.rank() == 0) flip(model->p[0], 4, 31);
    // Exchanges 1 and 2 are not compared.
    EXPECT_EQ(train_until_found(third, *model, world.rank(), 9).steps, 3);
  }
  auto model = make_terms(some_shapes);
  DistributedDataParallel never(model, world, every(0));
  if (world.rank() == 0) flip(model->p[0], 0, 3);
  EXPECT_EQ(train_until_found(never, *model, world.rank(), 9).steps, 0);
  EXPECT_NE(refusal([&] { DistributedDataParallel(make_terms({{5}}), world, every(-1)); }), "");
  expect_usable(world);
}

TEST_ON_RANKS(ConsistencyCheck, SeesEveryLayoutOfParameters, 2) {
  struct Strided : Terms {
    Strided() : Terms({}) {
      add(at::ones({4, 6}).t().detach());
      add(at::ones({4, 6}).slice(1, 0, 6, 2).detach());  // with holes
      add(at::ones({0}));
    }
  };
  auto model = std::make_shared<Strided>();
  DistributedDataParallel<Terms> ddp(model, world, every(1));
  EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 6).steps, 0);
  if (world.rank() == 1) flip(model->p[1], 1, 7);  // in a hole: nobody's
  EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 6).steps, 0);
  if (world.rank() == 1) flip(model->p[1], 2, 7);
  EXPECT_THAT(train_until_found(ddp, *model, world.rank(), 3).text,
              HasSubstr("parameter p1 with checksum"));
}

}  // namespace
}  // namespace lockstep::testing
