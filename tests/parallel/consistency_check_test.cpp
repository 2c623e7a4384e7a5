// Replicas that must be equal and are not.
#include "parallel/reducer/consistency_check.h"

#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"

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

class PlantedBit : public ::testing::TestWithParam<int> {};

TEST_P(PlantedBit, IsNamedWithinOneRotation) {
  const int ranks = GetParam();
  for (std::size_t i = 0; i < some_shapes.size(); ++i) {
    on_ranks(ranks, [&](const Group& world) {
      auto model = std::make_shared<Terms>(some_shapes);
      DistributedDataParallel ddp(model, world, every(1));
      EXPECT_EQ(train_until_found(ddp, *model, world.rank(), 2 * 4).steps, 0);
      const int wrong = ranks - 1;
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
      EXPECT_TRUE(near(model->p[1].grad(), mean_coefficient(ranks, 1, model->p[1])));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PlantedBit, ::testing::Values(2, 3, 4, 7));

TEST(ConsistencyCheck, ComparesAtEveryNthExchangeOrNever) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{5}});
    DistributedDataParallel third(model, world, every(3));
    EXPECT_EQ(train_until_found(third, *model, world.rank(), 1).steps, 0);  // exchange 0: compared
    if (world.rank() == 0) flip(model->p[0], 4, 31);
    EXPECT_EQ(train_until_found(third, *model, world.rank(), 9).steps,
              3);  // exchanges 1 and 2 are not
  });
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    DistributedDataParallel never(model, world, every(0));
    if (world.rank() == 0) flip(model->p[0], 0, 3);
    EXPECT_EQ(train_until_found(never, *model, world.rank(), 9).steps, 0);
  });
}

TEST(ConsistencyCheck, SeesEveryLayoutOfParameters) {
  on_ranks(2, [](const Group& world) {
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
  });
}

TEST(ConsistencyCheck, IsNoNumberThatCanBeNegative) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    EXPECT_THROW((DistributedDataParallel<Terms>(model, world, every(-1))), InvalidArgument);
    world.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing
