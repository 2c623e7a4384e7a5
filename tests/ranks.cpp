#include "tests/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "comm/host/host.h"
#include "core/text.h"
#include "lockstep/denormals.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

std::map<std::string, RankFunction>& bodies() {
  static std::map<std::string, RankFunction> registered;
  return registered;
}

constexpr const char* body_variable = "LOCKSTEP_TEST_BODY";

struct Child {
  pid_t pid = -1;
  int err = -1;
};

Child start(host::World& world, int rank, const std::string& name,
            std::chrono::milliseconds timeout) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  constexpr int arena_fd = 100;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, world.fd(), arena_fd);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  std::vector<std::string> texts{concat(body_variable, '=', name),
                                 concat("LOCKSTEP_RANK=", rank),
                                 concat("LOCKSTEP_WORLD_SIZE=", world.size()),
                                 concat("LOCKSTEP_ARENA_FD=", arena_fd),
                                 concat("LOCKSTEP_TIMEOUT=", timeout.count() / 1000.0),
                                 "OMP_NUM_THREADS=1"};
  std::vector<char*> environment;
  for (auto& text : texts) environment.push_back(text.data());
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::array<char*, 2> arguments{self.data(), nullptr};
  Child child;
  const int error = ::posix_spawn(&child.pid, self.c_str(), &actions, nullptr, arguments.data(),
                                  environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  if (error != 0) throw std::runtime_error("posix_spawn failed");
  child.err = pipe[0];
  return child;
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got; (got = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  ::close(fd);
  return text;
}

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
  std::vector<Child> children;
  for (int rank = 0; rank < n; ++rank) children.push_back(start(*world, rank, name, timeout));

  std::vector<Outcome> outcomes(children.size());
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < children.size(); ++i) {
    readers.emplace_back([&, i] { outcomes[i].err = read_all(children[i].err); });
  }
  // As the launcher does, in whatever order they end. Other tests may have left children, too.
  for (std::size_t ended = 0; ended < children.size();) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    if (pid < 0) throw std::runtime_error("waitpid failed");
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (children[i].pid != pid) continue;
      ++ended;
      outcomes[i].exited = WIFEXITED(status);
      outcomes[i].code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
      world->mark_ended(static_cast<int>(i),
                        concat(WIFEXITED(status) ? "exit code " : "signal ", outcomes[i].code));
    }
  }
  for (auto& reader : readers) reader.join();
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
