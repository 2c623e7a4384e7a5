#include "tests/protocol/checks.h"

#include <sstream>

#include "tests/protocol/collectives.h"
#include "tests/protocol/messages.h"
#include "tests/protocol/records.h"

namespace lockstep::testing {
namespace {

template <class Scenario>
CheckResult explore(unsigned bound) {
  std::ostringstream history;
  std::ostringstream progress;
  rl::test_params params;
  params.output_stream = &history;
  params.progress_stream = &progress;
  params.search_type = bound == 0 ? rl::sched_full : rl::sched_bound;
  params.context_bound = bound;
  params.execution_depth_limit = 3000;
  const auto begin = std::chrono::steady_clock::now();
  const bool holds = rl::simulate<Scenario>(params);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {.holds = holds,
          .failure = holds ? "" : rl::test_result_str(params.test_result),
          .history = history.str(),
          .interleavings = params.stop_iteration,
          .seconds = seconds.count()};
}

template <class Scenario>
Check check(
    std::string name, unsigned bound, bool is_short, int victim = -1,
    const std::function<void()>& prepare = [] {}) {
  return {.name = std::move(name),
          .ranks = Scenario::ranks,
          .bound = bound,
          .is_short = is_short,
          .run = [=] {
            settings.victim = victim;
            prepare();
            return explore<Scenario>(bound);
          }};
}

template <int ranks, std::uint64_t ring>
Check collectives(std::string name, const CollectiveCase& with, unsigned bound, bool is_short,
                  int victim = -1) {
  return check<Collectives<ranks, ring>>(std::move(name), bound, is_short, victim,
                                         [with] { collective_case = with; });
}

Check messages(std::string name, const MessageCase& with, unsigned bound, bool is_short,
               int victim = -1) {
  return check<Messages>(std::move(name), bound, is_short, victim, [with] { message_case = with; });
}

constexpr bool in_ctest = true;
constexpr bool in_long_form = false;

}  // namespace

const std::vector<Check>& checks() {
  using enum host::Path;
  static const std::vector<Check> all{
      // All interleavings of 2 ranks.
      collectives<2, 2>("eager", {.path = eager}, 0, in_ctest),
      collectives<2, 2>("zero-copy", {.path = zero_copy}, 0, in_ctest),
      collectives<2, 2>("staged", {.path = staged}, 0, in_long_form),
      messages("message", {.count = 1}, 0, in_ctest),
      messages("2 messages", {.count = 2}, 0, in_long_form),
      messages("probed message", {.count = 1, .probes = true}, 0, in_ctest),
      check<WakeUps<2>>("wake-up", 0, in_ctest),
      check<Failures<2>>("failure", 0, in_long_form),
      check<Failures<2>>("failure, death of its writer", 0, in_long_form, 0),
      check<Errors>("error", 0, in_ctest),
      check<EndTexts>("text of an end", 0, in_ctest),
      check<Ends>("end", 0, in_long_form),
      check<Leaves>("leave", 0, in_ctest),
      check<Retirements<2>>("retirement", 0, in_ctest),
      check<Waits>("published wait", 2, in_ctest),
      check<FlightEntries>("flight entry", 2, in_ctest),
      // 2 ranks, bounded.
      check<Failures<2>>("failure", 3, in_ctest),
      check<Failures<2>>("failure, death of its writer", 3, in_ctest, 0),
      check<FailsAfterPublishing>("data before a failure", 3, in_ctest),
      check<FailsAfterPublishing>("data before a failure", 4, in_long_form),
      check<Ends>("end", 3, in_ctest),
      messages("2 messages", {.count = 2}, 3, in_ctest),
      collectives<2, 1>("eager, full ring", {.path = eager, .count = 2}, 3, in_ctest),
      collectives<2, 1>("2 eager outstanding, full ring",
                        {.path = eager, .count = 2, .outstanding = 2, .sleeps = true}, 1, in_ctest),
      collectives<2, 1>("2 eager outstanding, full ring",
                        {.path = eager, .count = 2, .outstanding = 2, .sleeps = true}, 3,
                        in_long_form),
      collectives<2, 2>("2 zero-copy", {.path = zero_copy, .count = 2}, 3, in_long_form),
      collectives<2, 1>("staged, 3 steps", {.path = staged, .steps = 3}, 2, in_ctest),
      collectives<2, 2>("eager, sleeps", {.path = eager, .sleeps = true}, 3, in_ctest),
      collectives<2, 2>("staged, sleeps", {.path = staged, .sleeps = true}, 3, in_long_form),
      collectives<2, 2>("eager, death of rank 0", {.path = eager, .sleeps = true}, 2, in_ctest, 0),
      collectives<2, 2>("staged, death of rank 0", {.path = staged, .sleeps = true}, 2,
                        in_long_form, 0),
      collectives<2, 2>("zero-copy, death of rank 1", {.path = zero_copy, .sleeps = true}, 3,
                        in_long_form, 1),
      collectives<2, 2>("eager, ranks leave", {.path = eager, .sleeps = true, .leaves = true}, 3,
                        in_long_form),
      messages("message, sleeps", {.count = 1, .sleeps = true}, 3, in_ctest),
      messages("2 messages, sleeps", {.count = 2, .sleeps = true}, 3, in_long_form),
      messages("message, death of the sender", {.count = 1, .sleeps = true}, 3, in_long_form, 0),
      messages("message, death of the receiver", {.count = 1, .sleeps = true}, 3, in_long_form, 1),
      check<Waits>("published wait", 4, in_long_form),
      check<FlightEntries>("flight entry", 4, in_long_form),
      // 3 ranks, bounded.
      collectives<3, 2>("eager", {.path = eager}, 2, in_long_form),
      collectives<3, 2>("zero-copy", {.path = zero_copy}, 2, in_long_form),
      collectives<3, 1>("staged", {.path = staged}, 1, in_long_form),
      collectives<3, 2>("eager, sleeps", {.path = eager, .sleeps = true}, 2, in_long_form),
      collectives<3, 2>("eager, death of rank 0", {.path = eager, .sleeps = true}, 1, in_long_form,
                        0),
      collectives<3, 2>("zero-copy, death of rank 0", {.path = zero_copy, .sleeps = true}, 1,
                        in_long_form, 0),
      collectives<3, 2>("staged, death of rank 1", {.path = staged, .sleeps = true}, 1,
                        in_long_form, 1),
      check<WakeUps<3>>("wake-up", 2, in_long_form),
      check<Failures<3>>("2 failures", 2, in_ctest),
      check<Failures<3>>("2 failures, death of rank 0", 2, in_long_form, 0),
      check<Retirements<3>>("retirement", 3, in_ctest),
  };
  return all;
}

}  // namespace lockstep::testing
