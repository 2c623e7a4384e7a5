#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/comm/host/host.h"
#include "lockstep/core/environment.h"

/// A rank that misbehaves as its arguments say: BEHAVIOUR RANK. Rank RANK does it, and the others
/// take part in barriers for as long as there are any. Every rank first says its pid.
namespace {

using lockstep::Communicator;
using lockstep::Environment;

std::shared_ptr<Communicator> join() {
  const auto& environment = Environment::get();
  return lockstep::host::create(
      lockstep::host::World::attach(environment.arena_fd.value(), environment.world_size.value()),
      environment.rank.value(), {.timeout = environment.timeout});
}

[[noreturn]] void barriers(Communicator& group) {
  for (;;) group.barrier().wait();
}

[[noreturn]] void sleep_on() {
  for (;;) pause();
}

void say(const std::string& line) { std::cout << line << std::endl; }

/// A process that leaves its parent, and its process group too if it is to be hard to find.
void start_descendant(bool own_session) {
  if (fork() != 0) return;
  if (own_session) setsid();
  if (fork() != 0) _exit(0);
  say("descendant " + std::to_string(getpid()));
  sleep_on();
}

void print_many_lines() {
  for (int i = 0; i < 40; ++i) std::cerr << "line " << i << '\n';
}

/// What could let another process in: open descriptors that are not standard streams, and what they
/// are.
void print_descriptors() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the directory's own descriptor
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    const int fd = std::stoi(entry.path().filename());
    if (gone || fd <= STDERR_FILENO) continue;
    const bool inherited = (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
    say("descriptor " + target.string() + (inherited ? " inheritable" : " close-on-exec"));
  }
}

const std::map<std::string, std::function<int()>, std::less<>> behaviours{
    {"leave", [] { return join(), 0; }},
    {"leave-before-init", [] { return 0; }},
    {"exit-3", [] { return join(), 3; }},
    {"throw",
     []() -> int {
       const auto group = join();
       throw std::logic_error("this rank threw");
     }},
    {"segfault",
     [] {
       const auto group = join();
       ::signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler of their own
       return raise(SIGSEGV);
     }},
    {"kill-9",
     [] {
       const auto group = join();
       return raise(SIGKILL);
     }},
    {"stop",
     [] {
       const auto group = join();
       return raise(SIGSTOP);
     }},
    {"never-init", []() -> int { sleep_on(); }},
    {"many-lines",
     [] {
       const auto group = join();
       print_many_lines();
       return 5;
     }},
    {"stubborn",
     []() -> int {
       const auto group = join();
       for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
       say("ready");
       sleep_on();
     }},
    {"descendant",
     []() -> int {
       const auto group = join();
       start_descendant(false);
       barriers(*group);
     }},
    {"hidden-descendant",
     [] {
       const auto group = join();
       start_descendant(true);
       return 4;
     }},
    {"descriptors",
     [] {
       const auto group = join();
       print_descriptors();
       group->barrier().wait();
       return 0;
     }},
};

int run(std::string_view behaviour, int chosen) {
  say("pid " + std::to_string(getpid()));
  const int rank = Environment::get().rank.value();
  if (behaviour == "finish") {
    join()->barrier().wait();
    return 0;
  }
  if (rank == chosen) return behaviours.find(behaviour)->second();
  const auto group = join();
  if (behaviour == "descriptors" || behaviour == "hidden-descendant") {
    group->barrier().wait();
    return 0;
  }
  barriers(*group);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view behaviour = argc > 1 ? argv[1] : "finish";
  if (behaviour != "finish" && !behaviours.contains(behaviour)) {
    std::cerr << "no such behaviour: " << behaviour << '\n';
    return 99;
  }
  const int chosen = argc > 2 ? std::atoi(argv[2]) : 0;
  if (behaviour == "throw" && Environment::get().rank == chosen) return run(behaviour, chosen);
  try {
    return run(behaviour, chosen);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
