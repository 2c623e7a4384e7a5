#include "lockstep/group.h"

#include <torch/torch.h>

#include <cmath>

#include "tests/group/on_threads.h"

namespace lockstep::testing {
namespace {

SUITE_ON_RANKS(Groups, 1, 2, 3, 4, 7);

/// The tensor that this rank contributes, known to all.
torch::Tensor part(int rank) { return torch::arange(12, at::kDouble).reshape({3, 4}) + 100 * rank; }

torch::Tensor all_parts(int size) {
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(part(rank));
  return torch::cat(parts);
}

void expect_equal(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_TRUE(torch::equal(got, expected)) << got << "\nexpected\n" << expected;
}

TEST_P_ON_RANKS(Groups, CollectivesOnTensors) {
  const int size = world.size();
  const auto mine = part(world.rank());
  const auto all = all_parts(size);
  const auto sum = all.reshape({size, 3, 4}).sum(0);

  auto reduced = mine.clone();
  world.all_reduce(reduced).wait();
  expect_equal(reduced, sum);

  auto averaged = mine.clone();
  world.all_reduce(averaged, ReduceOp::avg).wait();
  EXPECT_LT((averaged - sum / size).abs().max().item<double>(), 1e-12);

  auto sent = mine.clone();
  world.broadcast(sent, size - 1).wait();
  expect_equal(sent, part(size - 1));

  auto gathered = torch::empty({3 * size, 4}, at::kDouble);
  world.all_gather(gathered, mine).wait();
  expect_equal(gathered, all);

  std::vector<std::size_t> counts(static_cast<std::size_t>(size), 12);
  counts.back() = 4;
  auto varying = torch::empty({12 * size - 8}, at::kDouble);
  const bool last = world.rank() == size - 1;
  world.all_gather(varying, last ? mine[0] : mine, counts).wait();
  expect_equal(varying, all.flatten().slice(0, 0, 12 * size - 8));

  auto scattered = torch::empty({3, 4}, at::kDouble);
  world.reduce_scatter(scattered, all + world.rank()).wait();
  expect_equal(scattered, mine * size + size * (size - 1) / 2);

  auto at_root = world.rank() == 0 ? torch::empty({3 * size, 4}, at::kDouble) : torch::Tensor();
  world.gather(at_root, mine, 0).wait();
  if (world.rank() == 0) expect_equal(at_root, all);

  auto from_root = torch::empty({3, 4}, at::kDouble);
  world.scatter(from_root, world.rank() == 0 ? all : torch::Tensor(), 0).wait();
  expect_equal(from_root, mine);

  auto exchanged = torch::empty({size}, at::kLong);
  world.all_to_all(exchanged, torch::arange(size) + 10 * world.rank()).wait();
  expect_equal(exchanged, 10 * torch::arange(size) + world.rank());

  auto received = torch::empty({3, 4}, at::kDouble);
  auto sending = world.send(mine, (world.rank() + 1) % size);
  const int before = (world.rank() + size - 1) % size;
  world.recv(received, before).wait();
  sending.wait();
  expect_equal(received, part(before));
  world.barrier().wait();
}

TEST_P_ON_RANKS(Groups, ReducesToRoot) {
  const int size = world.size();
  const auto parts = all_parts(size).reshape({size, 3, 4});
  for (int root = 0; root < size; ++root) {
    auto tensor = part(world.rank());
    world.reduce(tensor, root).wait();
    expect_equal(tensor, world.rank() == root ? parts.sum(0) : part(world.rank()));
    tensor = part(world.rank());
    world.reduce(tensor, root, ReduceOp::max).wait();
    expect_equal(tensor, world.rank() == root ? parts.amax(0) : part(world.rank()));
  }
}

TEST_P_ON_RANKS(Groups, OtherReductions) {
  const int size = world.size();
  auto any = torch::arange(64).remainder(size).eq(world.rank());
  auto all = torch::arange(64).remainder(2 * size).ne(world.rank());
  auto bits = torch::full({5}, 1 << world.rank(), at::kShort);
  world.all_reduce(any).wait();
  world.all_reduce(all, ReduceOp::product).wait();
  world.all_reduce(bits, ReduceOp::bor).wait();
  EXPECT_TRUE(any.all().item<bool>());
  expect_equal(all, torch::arange(64).remainder(2 * size).ge(size));
  expect_equal(bits, torch::full({5}, (1 << size) - 1, at::kShort));

  auto sum = torch::zeros({3, 4}, at::kDouble);
  for (int rank = 0; rank < size; ++rank) sum += part(rank) * (0.5 * rank);
  auto tensor = part(world.rank());
  world.all_reduce(tensor, premultiplied_sum(0.5 * world.rank())).wait();
  expect_equal(tensor, sum);
}

TEST_P_ON_RANKS(Groups, PartsOfUnequalLengths) {
  const int size = world.size();
  const auto value = [](int from, int to) { return 100.0 * from + to; };
  std::vector<std::size_t> sent, received, counts;
  std::vector<torch::Tensor> in, expected, all;
  for (int rank = 0; rank < size; ++rank) {
    sent.push_back(static_cast<std::size_t>(world.rank() + rank));
    received.push_back(static_cast<std::size_t>(rank + world.rank()));
    in.push_back(torch::full({world.rank() + rank}, value(world.rank(), rank)));
    expected.push_back(torch::full({rank + world.rank()}, value(rank, world.rank())));
    counts.push_back(static_cast<std::size_t>(rank));
    all.push_back(torch::full({rank}, value(rank, 0)));
  }
  auto output = torch::zeros_like(torch::cat(expected));
  world.all_to_all(output, torch::cat(in), received, sent).wait();
  expect_equal(output, torch::cat(expected));

  const int root = size - 1;
  const auto own = all[static_cast<std::size_t>(world.rank())];
  auto gathered = world.rank() == root ? torch::zeros_like(torch::cat(all)) : torch::Tensor();
  world.gather(gathered, own, counts, root).wait();
  if (world.rank() == root) expect_equal(gathered, torch::cat(all));
  auto scattered = torch::zeros_like(own);
  world.scatter(scattered, world.rank() == root ? torch::cat(all) : torch::Tensor(), counts, root)
      .wait();
  expect_equal(scattered, own);
  counts.push_back(0);
  EXPECT_THROW(world.gather(gathered, own, counts, root).wait(), InvalidArgument);
  world.barrier().wait();
}

TEST_P(Groups, MemoryOfTheGroup) {
  torch::Tensor survivor;
  spawn(GetParam(), [&](const Group& world) {
    auto tensor = world.empty({100, 1000});
    tensor.fill_(world.rank());
    world.all_reduce(tensor, ReduceOp::max).wait();
    expect_equal(tensor, torch::full({100, 1000}, static_cast<float>(world.size() - 1)));
    EXPECT_EQ(world.empty({0, 5}).numel(), 0);
    const auto bytes_overflow = std::int64_t{1} << 62;
    EXPECT_THROW(world.empty({bytes_overflow}), InvalidArgument);
    EXPECT_THROW(world.empty({3, -1}), InvalidArgument);
    if (world.rank() == 0) survivor = tensor;
  });
  EXPECT_EQ(survivor.sum().item<double>(), 1e5 * (GetParam() - 1));
}

TEST_ON_RANKS(Group, KeepsTemporariesUntilTheyAreDone, 2) {
  std::vector<Work> works(8);
  for (auto& work : works) work = world.all_reduce(torch::ones({100'000}) * world.rank());
  for (auto& work : works) work.wait();
}

TEST_ON_RANKS(Group, RefusesTensorsItCannotUse, 2) {
  const auto refusal = [&](const torch::Tensor& tensor) {
    return testing::refusal([&] { world.all_reduce(tensor).wait(); });
  };
  EXPECT_THAT(refusal(torch::Tensor()), HasSubstr("undefined"));
  EXPECT_THAT(refusal(torch::ones({3, 4}).t()), HasSubstr("strides [1, 4], expected a contiguous"));
  EXPECT_EQ(refusal(torch::ones({3}, at::kBool)), "");
  EXPECT_THROW(world.all_reduce(torch::ones({3}, at::kBool), ReduceOp::avg).wait(),
               InvalidArgument);
  EXPECT_THAT(refusal(torch::ones({3}, at::kComplexFloat)), HasSubstr("ComplexFloat"));
  const auto complex = torch::ones({}, at::kComplexFloat);
  EXPECT_THAT(refusal(at::imag(complex.conj())),
              HasSubstr("negated view, expected values in memory: use its clone()"));
  EXPECT_THAT(refusal(torch::_efficientzerotensor({3})), HasSubstr("zero without memory"));
  EXPECT_THAT(refusal(torch::ones({3}).to_sparse()), HasSubstr("Sparse"));
  EXPECT_THAT(refusal(torch::empty({3}, at::device(at::kMeta))), HasSubstr("on meta"));
  EXPECT_EQ(refusal(torch::empty({0})), "");

  auto wrong = torch::empty({5});
  EXPECT_THROW(world.all_gather(wrong, torch::ones({3})).wait(), InvalidArgument);
  EXPECT_THROW(world.all_gather(torch::empty({6}, at::kDouble), torch::ones({3})).wait(),
               InvalidArgument);
  EXPECT_THROW(world.reduce_scatter(torch::empty({3}), torch::ones({7})).wait(), InvalidArgument);
  EXPECT_THROW(world.all_to_all(wrong, torch::ones({5})).wait(), InvalidArgument);
  EXPECT_THROW(world.broadcast(wrong, 2).wait(), InvalidArgument);
  // None of this cost a sequence number.
  auto tensor = torch::ones({3});
  world.all_reduce(tensor).wait();
  expect_equal(tensor, torch::full({3}, 2.0f));
}

TEST_ON_RANKS(Group, RefusesAnInputThatOverlapsTheOutput, 3) {
  const auto all = torch::arange(6);
  const auto own = all.narrow(0, 2 * world.rank(), 2);
  const auto between = all.narrow(0, 1, 2);  // the place of no part
  EXPECT_THROW(world.all_to_all(all, all).wait(), InvalidArgument);
  EXPECT_THROW(world.all_to_all(all, all, {2, 2, 2}, {2, 2, 2}).wait(), InvalidArgument);
  EXPECT_THROW(world.all_gather(all, between).wait(), InvalidArgument);
  EXPECT_THROW(world.reduce_scatter(between, all).wait(), InvalidArgument);
  EXPECT_THROW(world.gather(all, between, world.rank()).wait(), InvalidArgument);
  EXPECT_THROW(world.scatter(between, all, world.rank()).wait(), InvalidArgument);
  world.all_gather(all, own).wait();
  world.gather(all, own, 1).wait();
  world.scatter(own, all, 2).wait();
  expect_equal(all, torch::arange(6));
  world.reduce_scatter(own, all).wait();
  expect_equal(own, torch::arange(6).narrow(0, 2 * world.rank(), 2) * 3);
}

TEST(Group, NamesShapesThatDiffer) {
  std::vector<std::string> texts(2);
  spawn(2, [&](const Group& world) {
    const auto tensor = world.rank() == 0 ? torch::ones({2, 3}) : torch::ones({3, 2});
    texts[static_cast<std::size_t>(world.rank())] =
        message_of<CommError>([&] { world.all_reduce(tensor).wait(); });
  });
  EXPECT_THAT(
      texts,
      Each(HasSubstr("got all_reduce sum float32 [3, 2], expected all_reduce sum float32 [2, 3]")));
}

TEST_P(Groups, InTurnRunsRankAfterRank) {
  std::vector<int> order;
  spawn(GetParam(), [&](const Group& world) {
    EXPECT_EQ(world.size(), GetParam());
    EXPECT_EQ(world.local_size(), GetParam());
    for (int round = 0; round < 3; ++round) {
      world.in_turn([&] { order.push_back(world.rank()); });
    }
  });
  ASSERT_EQ(order.size(), static_cast<std::size_t>(3 * GetParam()));
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(order[i], static_cast<int>(i) % GetParam());
  }
}

TEST(Group, InTurnTellsTheOthersOfAnException) {
  std::vector<std::string> texts(3);
  EXPECT_THROW(spawn(3,
                     [&](const Group& world) {
                       texts[static_cast<std::size_t>(world.rank())] = message_of<CommError>([&] {
                         world.in_turn([&] {
                           if (world.rank() == 1) throw std::range_error("mine alone");
                         });
                       });
                     }),
               std::range_error);
  EXPECT_THAT(texts[0], HasSubstr("rank 1: in_turn: mine alone"));
  EXPECT_EQ(texts[1], "");
  EXPECT_THAT(texts[2], HasSubstr("rank 1: in_turn: mine alone"));
}

TEST(Group, AgreesOnNumbersAndConditions) {
  for (const int ranks : {1, 2, 3, 7}) {
    spawn(ranks, [&](const Group& world) {
      const bool last = world.rank() == ranks - 1;
      EXPECT_EQ(world.mean(world.rank() + 0.5), ranks / 2.0);
      EXPECT_TRUE(std::isnan(world.mean(last ? NAN : 1)));
      EXPECT_TRUE(world.any(last));
      EXPECT_FALSE(world.any(false));
      EXPECT_EQ(world.all(last), ranks == 1);
      EXPECT_TRUE(world.all(true));
    });
  }
}

TEST_ON_RANKS(Group, SplitsByColor, 4) {
  const Group pair = world.split(world.rank() / 2);
  EXPECT_EQ(pair.size(), 2);
  EXPECT_EQ(pair.rank(), world.rank() % 2);
  auto tensor = torch::full({3}, world.rank(), at::kLong);
  pair.all_reduce(tensor).wait();
  expect_equal(tensor, torch::full({3}, world.rank() < 2 ? 1 : 5, at::kLong));
  EXPECT_THROW((void)world.split(-1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
