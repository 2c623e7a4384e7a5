// Explores the shared-memory protocol with Relacy. docs/design/protocol-proof.md describes it.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "tests/in_child.h"
#include "tests/protocol/collectives.h"
#include "tests/protocol/messages.h"
#include "tests/protocol/records.h"

namespace lockstep::testing {
namespace {

struct CheckResult {
  bool holds;
  std::string failure;  ///< "DATA RACE"
  std::string history;  ///< the interleaving that failed
  unsigned long long interleavings;
  double seconds;
};

/// One scenario with one setting.
struct Check {
  std::string name;
  int ranks;
  /// Most switches of ranks that run, to others that can run; 0 for all interleavings.
  unsigned bound;
  bool is_short;  ///< whether ctest runs it
  std::function<CheckResult()> run;
};

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

struct Arguments {
  bool is_long = false;
  bool weakens = false;
  bool history = false;
  std::string access;
  std::string only;
};

const char* text_of(std::memory_order order) { return rl::format(relacy_order(order)); }

std::string full_name(const Check& check) {
  const auto bound = check.bound == 0 ? "all" : "bound " + std::to_string(check.bound);
  return check.name + ", " + std::to_string(check.ranks) + " ranks, " + bound;
}

bool is_chosen(const Check& check, const Arguments& arguments) {
  return (arguments.is_long || check.is_short) &&
         full_name(check).find(arguments.only) != std::string::npos;
}

/// The orders that are weaker than that of the access. relaxed: no fence.
std::vector<std::memory_order> weaker(const detail::AccessRule& rule) {
  using enum std::memory_order;
  const bool reads = rule.kind != AccessKind::store;
  const bool writes = rule.kind != AccessKind::load;
  std::vector<std::memory_order> orders;
  if (rule.order == seq_cst && reads && writes) orders.push_back(acq_rel);
  if ((rule.order == seq_cst || rule.order == acq_rel) && reads) orders.push_back(acquire);
  if ((rule.order == seq_cst || rule.order == acq_rel) && writes) orders.push_back(release);
  if (rule.order != relaxed) orders.push_back(relaxed);
  return orders;
}

int run_checks(const Arguments& arguments) {
  int failed = 0;
  std::printf("| check | interleavings | seconds | result |\n|---|---|---|---|\n");
  for (const auto& check : checks()) {
    if (!is_chosen(check, arguments)) continue;
    const auto result = check.run();
    std::printf("| %s | %llu | %.1f | %s |\n", full_name(check).c_str(), result.interleavings,
                result.seconds, result.holds ? "holds" : result.failure.c_str());
    std::fflush(stdout);
    if (result.holds) continue;
    ++failed;
    if (arguments.history) std::printf("%s\n", result.history.c_str());
  }
  return failed == 0 ? 0 : 1;
}

/// "name of the check: failure", or "" if all checks hold.
std::string first_failure(const Arguments& arguments, const Weakening& weakening,
                          const std::map<std::string, Accesses>& uses) {
  for (const auto& check : checks()) {
    if (!is_chosen(check, arguments)) continue;
    const auto name = full_name(check);
    if (!uses.at(name)[static_cast<std::size_t>(weakening.access)]) continue;
    // A check that fails leaves Relacy's memory behind.
    const auto failure = in_child([&] {
      settings.weakening = weakening;
      return check.run().failure;
    });
    if (!failure.empty()) return name + ": " + failure;
  }
  return "";
}

int weaken(const Arguments& arguments) {
  std::map<std::string, Accesses> uses;  // of each check
  for (const auto& check : checks()) {
    if (!is_chosen(check, arguments)) continue;
    uses[full_name(check)] = Accesses(in_child([&] {
      check.run();
      return settings.used.to_string();
    }));
  }
  std::printf("| access | order | weaker | check that fails |\n|---|---|---|---|\n");
  int green = 0;
  for (const auto& rule : detail::access_rules) {
    if (!arguments.access.empty() && rule.name != arguments.access) continue;
    for (const auto order : weaker(rule)) {
      const auto failure =
          first_failure(arguments, Weakening{.access = rule.access, .order = order}, uses);
      green += failure.empty() ? 1 : 0;
      const bool none = rule.kind == AccessKind::fence && order == std::memory_order::relaxed;
      std::printf("| `%.*s` | %s | %s | %s |\n", static_cast<int>(rule.name.size()),
                  rule.name.data(), text_of(rule.order), none ? "none" : text_of(order),
                  failure.empty() ? "none" : failure.c_str());
      std::fflush(stdout);
    }
  }
  std::printf("\n%d weaker orders turn no check red.\n", green);
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  Arguments arguments;
  CLI::App app("Explores the shared-memory protocol with Relacy; exits with 1 if a check fails");
  app.add_flag("--long", arguments.is_long, "All checks (default: those of ctest)");
  app.add_flag("--weaken", arguments.weakens,
               "Run the checks with each weaker order of each access, print which check fails");
  app.add_option("--access", arguments.access, "With --weaken: this access only");
  app.add_option("--only", arguments.only, "Checks whose name contains this text");
  app.add_flag("--history", arguments.history, "Print the interleaving that fails");
  CLI11_PARSE(app, argc, argv);
  return arguments.weakens ? weaken(arguments) : run_checks(arguments);
}
