#include "misbehaviour.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

#include "lockstep/error.h"

namespace lockstep::bench {
namespace {

using Action = std::function<void(const Group*)>;

/// Elements of the all_reduce that other ranks do at step 5.
constexpr std::int64_t elements = 200'000;

[[noreturn]] void sleep_on() {
  for (;;) pause();
}

void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  raise(signal);
}

int next(const Group& world) { return (world.rank() + 1) % world.size(); }

const std::map<std::string, Action, std::less<>>& actions() {
  static const std::map<std::string, Action, std::less<>> all{
      {"exit with code 0", [](const Group*) { _exit(0); }},
      {"exit with code 3", [](const Group*) { _exit(3); }},
      {"exit(), with destructors", [](const Group*) { std::exit(4); }},
      {"throw an exception nobody catches",
       [](const Group*) {
         std::thread([] { throw std::runtime_error("this rank threw"); }).join();
       }},
      {"throw an exception in main", [](const Group*) { throw std::runtime_error("disk full"); }},
      {"throw a lockstep::Error", [](const Group*) { throw InvalidArgument("this rank's input"); }},
      {"abort()", [](const Group*) { end_by(SIGABRT); }},
      {"segmentation fault", [](const Group*) { end_by(SIGSEGV); }},
      {"SIGKILL", [](const Group*) { end_by(SIGKILL); }},
      {"SIGTERM", [](const Group*) { end_by(SIGTERM); }},
      {"no more memory",
       [](const Group*) {
         const rlimit limit{1 << 20, 1 << 20};
         setrlimit(RLIMIT_DATA, &limit);
         const std::vector<char> large(std::size_t{1} << 30);
         throw std::runtime_error("memory was not short: " + std::to_string(large.size()));
       }},
      {"stop (SIGSTOP)", [](const Group*) { raise(SIGSTOP); }},
      {"sleep for ever", [](const Group*) { sleep_on(); }},
      {"compute for ever",
       [](const Group*) {
         for (std::atomic<long> i = 0;; ++i) {
         }
       }},
      {"another collective", [](const Group* world) { world->barrier().wait(); }},
      {"another number of elements",
       [](const Group* world) { world->all_reduce(at::zeros({elements + 1})).wait(); }},
      {"another dtype",
       [](const Group* world) { world->all_reduce(at::zeros({elements}, at::kDouble)).wait(); }},
      {"another reduction",
       [](const Group* world) { world->all_reduce(at::zeros({elements}), ReduceOp::max).wait(); }},
      {"a message that nobody receives",
       [](const Group* world) { world->send(at::zeros({300'000}), next(*world)).wait(); }},
      {"a message that nobody sends",
       [](const Group* world) { world->recv(at::empty({10}), next(*world)).wait(); }},
      {"a group that others do not make", [](const Group* world) { world->split(0); }},
  };
  return all;
}

}  // namespace

std::vector<std::string> misbehaviours() {
  std::vector<std::string> names;
  for (const auto& [name, action] : actions()) names.push_back(name);
  return names;
}

void misbehave(const std::string& name, const Group* world) { actions().at(name)(world); }

int rank_before_init() {
  for (const char* variable : {"LOCKSTEP_RANK", "OMPI_COMM_WORLD_RANK", "RANK"}) {
    if (const char* value = std::getenv(variable)) return std::atoi(value);
  }
  return -1;
}

}  // namespace lockstep::bench
