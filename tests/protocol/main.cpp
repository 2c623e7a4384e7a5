// Explores the shared-memory protocol with Relacy. docs/design/protocol-proof.md describes it.

#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/protocol/checks.h"

namespace lockstep::testing {
namespace {

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

/// Runs fn in a child process, because a check that fails leaves Relacy's memory behind.
template <class Fn>
std::string in_child(const Fn& fn) {
  std::fflush(stdout);
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = fn();
    [[maybe_unused]] const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t got; (got = ::read(ends[0], part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? "CRASH" : text;
}

/// "name of the check: failure", or "" if all checks hold.
std::string first_failure(const Arguments& arguments, const Weakening& weakening,
                          const std::map<std::string, Accesses>& uses) {
  for (const auto& check : checks()) {
    if (!is_chosen(check, arguments)) continue;
    const auto name = full_name(check);
    if (!uses.at(name)[static_cast<std::size_t>(weakening.access)]) continue;
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
