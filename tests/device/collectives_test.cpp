#include "group/tensors.h"
#include "tests/device/on_devices.h"
#include "tests/refusal.h"

// Collectives on devices, compared with the same collectives in host memory.

namespace lockstep::testing {
namespace {

constexpr at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                     at::kByte,  at::kInt,    at::kLong, at::kShort,    at::kBool};

/// Whether the group's device has the reduction: NCCL lacks those of bits and of int16.
bool reduces(const Group& group, at::ScalarType type, ReduceOp op) {
  const auto dtype = detail::dtype_of(type, "test");
  if (!has_reduction(dtype, op)) return false;
  const bool is_bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  const bool is_nccl = group.communicator().backend().starts_with("nccl");
  return !is_nccl || (!is_bitwise && dtype != DType::i16);
}

/// Small whole numbers, whose sums are exact in every dtype and order.
at::Tensor numbers(const Group& group, std::int64_t count, at::ScalarType dtype) {
  return at::arange(count, at::kLong).add(group.rank() + 1).remainder(5).to(dtype);
}

/// Whether the values are equal but for the rounding of a mean, which NCCL divides by another
/// operation.
bool are_alike(const at::Tensor& got, const at::Tensor& expected) {
  if (!got.is_floating_point()) return at::equal(got, expected);
  const double rounding = got.element_size() == 2 ? 1e-2 : 1e-6;
  return got.to(at::kDouble).allclose(expected.to(at::kDouble), rounding, 0);
}

/// A collective of a group with an output and an input.
using TwoTensors = std::function<Work(const Group&, at::Tensor, at::Tensor)>;
/// One in place.
using OneTensor = std::function<Work(const Group&, at::Tensor)>;

/// Runs a collective on the device and in host memory, and expects like outputs.
void expect_as_on_host(const Group& group, const at::Tensor& output, const at::Tensor& input,
                       const TwoTensors& collective) {
  const auto on_device = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(group.device()) : tensor;
  };
  const auto device_output = on_device(output);
  const auto device_input = output.is_same(input) ? device_output : on_device(input);
  auto work = collective(group, device_output, device_input);
  collective(group.host(), output, input).wait();
  work.wait();
  if (!output.defined()) return;
  EXPECT_TRUE(are_alike(device_output.cpu(), output)) << output;
}
void expect_as_on_host(const Group& group, const at::Tensor& tensor, const OneTensor& collective) {
  expect_as_on_host(group, tensor, tensor,
                    [&](auto& on, auto out, auto) { return collective(on, out); });
}

void expect_reductions(const Group& group, at::ScalarType dtype, std::int64_t count,
                       const Reduction& op) {
  expect_as_on_host(group, numbers(group, count, dtype),
                    [&](auto& on, auto out) { return on.all_reduce(out, op); });
  expect_as_on_host(group, numbers(group, count, dtype),
                    [&](auto& on, auto out) { return on.reduce(out, group.size() - 1, op); });
  expect_as_on_host(group, at::zeros({count}, dtype), numbers(group, count * group.size(), dtype),
                    [&](auto& on, auto out, auto in) { return on.reduce_scatter(out, in, op); });
}

class Collectives : public OnDevices {};

TEST_P_ON_DEVICES(Collectives, Reductions) {
  for (const auto dtype : dtypes) {
    for (const auto op : all_reduce_ops) {
      SCOPED_TRACE(detail::concat(toString(dtype), ' ', lockstep::name(op)));
      if (!reduces(group, dtype, op)) continue;
      for (const std::int64_t count : {0, 1, 1000}) expect_reductions(group, dtype, count, op);
    }
  }
  const auto weighted = premultiplied_sum(0.25 * (group.rank() + 1));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    expect_reductions(group, dtype, 300, weighted);
  }
}

TEST_P_ON_DEVICES(Collectives, PartsOfDifferentLengths) {
  // How many elements a rank sends to another by all_to_all, and holds in the other collectives.
  const auto length = [](int from, int to) { return (3 * from + 5 * to) % 7; };
  std::vector<std::size_t> counts, sent, received;
  std::int64_t total = 0;
  std::int64_t sum_sent = 0;
  std::int64_t sum_received = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    counts.push_back(static_cast<std::size_t>(length(rank, 0)));
    sent.push_back(static_cast<std::size_t>(length(group.rank(), rank)));
    received.push_back(static_cast<std::size_t>(length(rank, group.rank())));
    total += length(rank, 0);
    sum_sent += length(group.rank(), rank);
    sum_received += length(rank, group.rank());
  }
  const auto own = length(group.rank(), 0);
  expect_as_on_host(group, at::zeros({total}), numbers(group, own, at::kFloat),
                    [&](auto& on, auto out, auto in) { return on.all_gather(out, in, counts); });
  for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
    expect_as_on_host(
        group, at::zeros({own}, at::kInt), numbers(group, total, at::kInt),
        [&](auto& on, auto out, auto in) { return on.reduce_scatter(out, in, counts, op); });
  }
  for (const auto dtype : dtypes) {
    expect_as_on_host(
        group, at::zeros({sum_received}, dtype), numbers(group, sum_sent, dtype),
        [&](auto& on, auto out, auto in) { return on.all_to_all(out, in, received, sent); });
  }
}

TEST_P_ON_DEVICES(Collectives, ThatMoveData) {
  const auto ranks = group.size();
  for (const auto dtype : dtypes) {
    for (const std::int64_t count : {0, 1, 300}) {
      SCOPED_TRACE(detail::concat(toString(dtype), ' ', count));
      const auto own = numbers(group, count, dtype);
      const auto whole = numbers(group, count * ranks, dtype);
      for (int root = 0; root < ranks; ++root) {
        expect_as_on_host(group, own.clone(),
                          [&](auto& on, auto out) { return on.broadcast(out, root); });
        const bool is_root = group.rank() == root;
        expect_as_on_host(group, is_root ? at::zeros_like(whole) : at::Tensor(), own,
                          [&](auto& on, auto out, auto in) { return on.gather(out, in, root); });
        expect_as_on_host(group, at::zeros_like(own), is_root ? whole : at::Tensor(),
                          [&](auto& on, auto out, auto in) { return on.scatter(out, in, root); });
      }
      expect_as_on_host(group, at::zeros_like(whole), own,
                        [&](auto& on, auto out, auto in) { return on.all_gather(out, in); });
      expect_as_on_host(group, at::zeros_like(whole), whole,
                        [&](auto& on, auto out, auto in) { return on.all_to_all(out, in); });
    }
  }
}

TEST_P_ON_DEVICES(Collectives, Wires) {
  for (const auto dtype : {DType::f16, DType::bf16}) {
    for (const bool predivide : {false, true}) {
      for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
        const Wire wire{.dtype = dtype, .clip = 3, .predivide = predivide};
        const auto tensor = numbers(group, 100, at::kFloat).sub(2).mul(2);
        // A mean is rounded in another order.
        const auto expected = tensor.clone();
        group.host().all_reduce(expected, op, wire).wait();
        const auto on_device = tensor.to(group.device());
        group.all_reduce(on_device, op, wire).wait();
        const double rounding = dtype == DType::f16 ? 2e-3 : 2e-2;
        EXPECT_TRUE(on_device.cpu().allclose(expected, rounding, rounding));
      }
    }
  }
}

TEST_P_ON_DEVICES(Collectives, Messages) {
  if (group.size() == 1) return;
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const auto sent = numbers(group, 100, at::kFloat).to(group.device());
  const auto received = at::zeros_like(sent);
  // Messages are in the order of the device's stream: even ranks send first.
  if (group.rank() % 2 == 0) {
    group.send(sent, next, 5).wait();
    group.recv(received, previous, 5).wait();
  } else {
    group.recv(received, previous, 5).wait();
    group.send(sent, next, 5).wait();
  }
  const auto expected = at::arange(100, at::kLong).add(previous + 1).remainder(5).to(at::kFloat);
  EXPECT_TRUE(at::equal(received.cpu(), expected));
}

/// Rank 0 receives from any rank, the later tag first, on its device and on the host.
void receive_by_tag(const Group& group, const at::Tensor& number) {
  if (group.rank() > 0) {
    number.fill_(group.rank());
    auto first = group.send(number, 0, 1);
    auto second = group.send(number, 0, 2);
    first.wait();
    second.wait();
  }
  for (const std::uint32_t tag : {2, 1}) {
    for (int i = 1; group.rank() == 0 && i < group.size(); ++i) {
      auto received = group.recv(number, any_source, tag);
      received.wait();
      EXPECT_EQ(number.item<int>(), received.source());
    }
  }
  group.barrier().wait();
}

TEST_P_ON_DEVICES(Collectives, MessagesByTag) {
  receive_by_tag(group.host(), at::zeros({1}));
  const auto number = at::zeros({1}, group.device());
  if (group.communicator().matches_by_tag()) return receive_by_tag(group, number);
  EXPECT_THROW(static_cast<void>(group.recv(number, any_source)), BackendUnavailable);
}

// A collective comes after what the stream has, and before what follows wait().
TEST_P(Collectives, AreInTheOrderOfTheStream) {
  delay_streams(200);
  run([](const Group& group) {
    const auto tensor = at::zeros({1000}, group.device());
    for (int i = 0; i < 10; ++i) {
      tensor.add_(group.rank() + 1);
      auto work = group.all_reduce(tensor, ReduceOp::avg);
      const auto other = at::ones({1000}, tensor.options()).mul_(3);  // meanwhile
      work.wait();
      tensor.add_(other);
    }
    const double mean = (group.size() + 1) / 2.0;
    EXPECT_TRUE(tensor.cpu().allclose(at::full({1000}, 10 * (mean + 3)), 1e-5, 1e-5));
  });
  delay_streams(0);
}

TEST_P_ON_DEVICES(Collectives, InParts) {
  const auto part = group.split(group.rank() % 2, -group.rank());
  EXPECT_EQ(part.device(), group.device());
  const auto tensor = at::full({10}, group.rank(), group.device());
  part.all_reduce(tensor, ReduceOp::max).wait();
  group.barrier().wait();
  part.barrier().wait();
  const int last = group.size() - 1;
  EXPECT_EQ(tensor[0].item<int>(), last % 2 == group.rank() % 2 ? last : last - 1);
  EXPECT_TRUE(part.host().device().is_cpu());
}

TEST_P_ON_DEVICES(Collectives, RefuseOtherDevices) {
  EXPECT_THAT(
      refusal([&] { (void)group.all_reduce(at::zeros({3})); }),
      HasSubstr("all_reduce: got a tensor of layout Strided on cpu, expected a dense one on " +
                group.device().str() + ": move it with .to(group.device()), or use"));
  const auto on_device = at::zeros({3}, group.device());
  EXPECT_THAT(refusal([&] { (void)group.host().all_reduce(on_device); }),
              HasSubstr("on " + group.device().str() + ", expected a dense one on cpu"));
  EXPECT_THAT(refusal([&] { (void)device_group(group, group.device()); }),
              HasSubstr("expected one on cpu"));
  group.barrier().wait();
  if (device_count() == 1) return;
  const auto other = device_of((group.rank() + 1) % device_count());
  EXPECT_THAT(
      refusal([&] { (void)group.all_reduce(at::zeros({3}, at::TensorOptions().device(other))); }),
      HasSubstr("on " + other.str() + ", expected a dense one on " + group.device().str()));
}

INSTANTIATE_TEST_SUITE_P(Devices, Collectives,
                         ::testing::Combine(both_backends, ::testing::Values(1, 2, 3, 4, 7)),
                         name_of_case);

}  // namespace
}  // namespace lockstep::testing
