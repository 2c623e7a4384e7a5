#include "tests/ranks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "comm/host/host.h"
#include "lockstep/denormals.h"
#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

std::map<std::string, RankFunction>& bodies() {
  static std::map<std::string, RankFunction> registered;
  return registered;
}

constexpr const char* body_variable = "LOCKSTEP_TEST_BODY";

/// Runs the body that the environment names, as the rank that it names.
int run_body(const std::string& name) {
  try {
    const auto variable = [](const char* variable_name) {
      return std::atoi(std::getenv(variable_name));
    };
    const int rank = variable("LOCKSTEP_RANK");
    auto world =
        host::World::attach(variable("LOCKSTEP_ARENA_FD"), variable("LOCKSTEP_WORLD_SIZE"));
    const auto timeout = std::chrono::milliseconds(
        static_cast<long>(1000 * std::atof(std::getenv("LOCKSTEP_TIMEOUT"))));
    bodies().at(name)(host::create(std::move(world), rank, {.timeout = timeout}));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

}  // namespace

void run_ranks(int n, const RankFunction& fn, std::chrono::milliseconds timeout) {
  const auto world = host::World::create(n);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      // Destroyed only after the failure is recorded, so that other ranks report that cause.
      std::shared_ptr<Communicator> communicator;
      try {
        communicator = host::create(world, rank, {.timeout = timeout});
        fn(communicator);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        world->fail({.kind = detail::Failure::Kind::error,
                     .rank = rank,
                     .text = concat("rank ", rank, ": ", error.what())});
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const auto failure = world->failure();
  if (failure && failure->rank >= 0 && errors[static_cast<std::size_t>(failure->rank)] != nullptr) {
    std::rethrow_exception(errors[static_cast<std::size_t>(failure->rank)]);
  }
  for (const auto& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

ProcessBody::ProcessBody(std::string name, RankFunction fn) {
  bodies().emplace(std::move(name), std::move(fn));
}

std::vector<Outcome> run_processes(int n, const std::string& name,
                                   std::chrono::milliseconds timeout) {
  if (!bodies().contains(name)) throw std::invalid_argument("no process body named " + name);
  const auto world = host::World::create(n);
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(n));
  std::vector<std::jthread> waiting;
  for (int rank = 0; rank < n; ++rank) {
    const Launched::Variables variables{{body_variable, name},
                                        {"LOCKSTEP_RANK", concat(rank)},
                                        {"LOCKSTEP_WORLD_SIZE", concat(n)},
                                        {"LOCKSTEP_ARENA_FD", concat(Outputs::kept_as)},
                                        {"LOCKSTEP_TIMEOUT", concat(timeout.count() / 1000.0)},
                                        {"OMP_NUM_THREADS", "1"}};
    // Not a pipe: the end of a rank is seen at once, before its output is read.
    const int err = ::memfd_create("stderr", MFD_CLOEXEC);
    auto child = std::make_unique<Launched>(
        Words{self}, variables, Outputs{.out = STDOUT_FILENO, .err = err, .kept = world->fd()});
    // As the launcher does, in whatever order they end.
    waiting.emplace_back([&, rank, err, child = std::move(child)] {
      const auto ended = child->wait();
      world->mark_ended(rank, concat(ended.by_signal ? "signal " : "exit code ", ended.code));
      outcomes[static_cast<std::size_t>(rank)] = {.exited = !ended.by_signal,
                                                  .code = ended.code,
                                                  .err = content(concat("/proc/self/fd/", err))};
      ::close(err);
    });
  }
  waiting.clear();
  return outcomes;
}

void expect_processes(int n, const std::string& name) {
  const auto outcomes = run_processes(n, name);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_TRUE(outcomes[rank].exited) << "rank " << rank << " of " << n;
    EXPECT_EQ(outcomes[rank].code, 0)
        << "rank " << rank << " of " << n << ": " << outcomes[rank].err;
  }
}

}  // namespace lockstep::testing

int main(int argc, char** argv) {
  // A second run of a test program checks its results while denormals are flushed.
  if (std::getenv("LOCKSTEP_TEST_FLUSHED") != nullptr) lockstep::flush_denormals(true);
  if (const char* name = std::getenv(lockstep::testing::body_variable)) {
    return lockstep::testing::run_body(name);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
