
#include "lockstep/denormals.h"
#include "tests/comm/conformance.h"
#include "tests/comm/oracle.h"

// Sums of groups that only their members create, and sums of denormals.

namespace lockstep::testing {

using lockstep::detail::concat;

std::int64_t sum_of_ranks(Communicator& group, int rank) {
  std::int64_t sum = rank;
  group.all_reduce(&sum, 1, DType::i64, ReduceOp::sum).wait();
  return sum;
}

namespace {

/// Several operations of the same group at the same time, of which some are staged between hosts.
void check_sums(Communicator& group) {
  std::vector<float> floats(100'003, static_cast<float>(group.rank() + 1));
  std::vector<std::int64_t> numbers(7, group.rank() + 1);
  auto of_floats = group.all_reduce(floats.data(), floats.size(), DType::f32, ReduceOp::sum);
  auto of_numbers = group.all_reduce(numbers.data(), numbers.size(), DType::i64, ReduceOp::sum);
  of_numbers.wait();
  of_floats.wait();
  const std::int64_t expected = std::int64_t{group.size()} * (group.size() + 1) / 2;
  require(numbers == std::vector<std::int64_t>(7, expected), group,
          "new_group: got another sum of integers");
  require(floats == std::vector<float>(100'003, static_cast<float>(expected)), group,
          "new_group: got another sum of floats");
}

/// Sent with the announcement, staged, and by more than one thread where there are several.
constexpr std::size_t denormal_counts[] = {3, 1000, 300'001};

/// Elements whose bits are small whole numbers: so many times the least denormal.
template <class Bits, class Multiple>
Bytes make_denormals(std::size_t count, const Multiple& multiple) {
  Bytes bytes(count * sizeof(Bits));
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<Bits>(multiple(static_cast<int>(i % 3)));
    std::memcpy(bytes.data() + i * sizeof bits, &bits, sizeof bits);
  }
  return bytes;
}

template <class Bits>
void all_reduce_denormals(Communicator& group, DType dtype, bool zero) {
  const int n = group.size();
  const auto own = [&](int extra) { return 1 + group.rank() + extra; };
  const auto sum = [&](int extra) { return zero ? 0 : n * (n + 1) / 2 + n * extra; };
  for (const std::size_t count : denormal_counts) {
    for (const Place place : {Place::group, Place::elsewhere}) {
      const Buffer data(group, place, make_denormals<Bits>(count, own));
      group.all_reduce(data.data(), count, dtype, ReduceOp::sum).wait();
      data.expect(make_denormals<Bits>(count, sum),
                  concat("all_reduce of denormal ", name(dtype), " count ", count, " of rank ",
                         group.rank()));
    }
  }
}

}  // namespace

void check_new_group(Communicator& group) {
  std::vector<int> members;
  for (int rank = group.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == 0) members.push_back(rank);
  }
  if (group.rank() % 2 == 0) {
    const auto evens = group.new_group(members);
    const auto last = static_cast<int>(members.size()) - 1;
    require(evens->rank() == last - group.rank() / 2 && evens->size() == last + 1, group,
            "new_group: got another rank or size");
    require(evens->world_rank(0) == group.world_rank(members[0]), group,
            "new_group: got another rank 0");
    require(sum_of_ranks(*evens, group.rank()) == last * (last + 1), group,
            "new_group: got another sum");
    check_sums(*evens);
    check_messages(*evens);
    // The same members again, while the first group exists, and groups of a new group.
    check_sums(*group.new_group(members));
    check_sums(*evens->new_group(std::vector{evens->rank()}));
    if (evens->rank() < 2 && evens->size() > 1) check_sums(*evens->new_group(std::vector{1, 0}));
    check_sums(*evens->split(evens->rank() % 2, 0));
  }
  // Groups of neighbours, from the first pair to the last, without a word of the other ranks.
  for (int first = 0; first + 1 < group.size(); ++first) {
    if (group.rank() != first && group.rank() != first + 1) continue;
    check_sums(*group.new_group(std::vector{first, first + 1}));
  }
  group.barrier().wait();
}

void check_denormals(Communicator& group) {
  // One rank adds nothing.
  const bool zero = flushes_denormals() && group.size() > 1;
  all_reduce_denormals<std::uint32_t>(group, DType::f32, zero);
  all_reduce_denormals<std::uint64_t>(group, DType::f64, zero);
  all_reduce_denormals<std::uint16_t>(group, DType::bf16, zero);
  // They are added as float32, in which they are normal.
  all_reduce_denormals<std::uint16_t>(group, DType::f16, false);
}

}  // namespace lockstep::testing
