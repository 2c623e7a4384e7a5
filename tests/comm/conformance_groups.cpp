#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/comm/conformance.h"

namespace lockstep::testing {

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

}  // namespace lockstep::testing
