// Errors name what the program called, where the library issued the collective.
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/init.h"
#include "lockstep/metrics.h"
#include "lockstep/uneven_inputs.h"
#include "tests/matchers.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using Call = std::function<void(const Group&)>;

std::string error_of(const Call& of_rank_0, const Call& of_rank_1) {
  return message_of<CommError>([&] {
    spawn(2, [&](const Group& group) { (group.rank() == 0 ? of_rank_0 : of_rank_1)(group); });
  });
}

void save(const Group& group) {
  torch::nn::Linear model(1, 1);
  Checkpoint{.model = model}.save("collective_names.safetensors", {}, group);
}

TEST(CollectiveNames, AreInErrorsOfOperationsThatDifferAndOfARankThatLeft) {
  const Call combine = [](const Group& group) { compute(group, Sum()); };
  const Call condition = [](const Group& group) { group.any(false); };
  const Call check = [](const Group& group) { all_or_none(group, [] {}); };
  const Call next = [](const Group& group) {
    std::vector<int> batches(1);
    for (const int batch : join_uneven(batches, group)) static_cast<void>(batch);
  };
  const auto expect = [](const Call& of_rank_0, std::string_view name_0, const Call& of_rank_1,
                         std::string_view name_1) {
    EXPECT_THAT(error_of(of_rank_0, of_rank_1),
                AllOf(HasSubstr(" for " + std::string(name_0) + " as on rank 0"),
                      HasSubstr(" for " + std::string(name_1) + ", expected")));
  };
  expect(combine, "the metrics", condition, "Group::mean(), any() or all()");
  expect(condition, "Group::mean(), any() or all()", combine, "the metrics");
  expect(save, "a checkpoint", check, "all_or_none()");
  expect(next, "join_uneven()", save, "a checkpoint");
  EXPECT_THAT(error_of(save, [](const Group&) {}),
              HasSubstr("rank 1 left the world (returned) before all_gather #1 (a checkpoint); "
                        "end loops on all ranks together: reduce their condition over"));
}

}  // namespace
}  // namespace lockstep::testing
