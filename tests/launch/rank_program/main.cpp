#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/arena.h"
#include "core/environment.h"
#include "core/failure.h"

/// A rank that misbehaves as its arguments say: BEHAVIOUR RANK. Rank RANK does it, and the others
/// take part in barriers for as long as there are any. Every rank first says its pid.
namespace {

using lockstep::Communicator;
using lockstep::Environment;
using lockstep::detail::ErrorRecord;

std::shared_ptr<lockstep::host::World> world() {
  const auto& environment = Environment::get();
  static const auto attached =
      lockstep::host::World::attach(environment.arena_fd.value(), environment.world_size.value());
  return attached;
}

std::shared_ptr<Communicator> join() {
  const auto& environment = Environment::get();
  return lockstep::host::create(world(), environment.rank.value(),
                                {.timeout = environment.timeout});
}

/// Waits until the launcher has seen another rank end with an error.
void await_failure() {
  while (!world()->failure()) std::this_thread::yield();
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

/// Prints open descriptors that another process could inherit, and their targets. Omits standard
/// streams.
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

int* volatile nowhere = nullptr;

/// Functions whose names stacks show.
[[gnu::noinline]] int crash_in_the_program() {
  *nowhere = 1;
  return *nowhere;
}

[[gnu::noinline]] int spin_in_the_program() {
  std::atomic<long> i{0};
  for (;; ++i) {
  }
}

[[gnu::noinline]] int overflow_the_stack(int depth) {
  volatile char frame[4096] = {};
  frame[depth % 4096] = 1;
  if (nowhere != nullptr) return 0;
  return overflow_the_stack(depth + 1) + frame[0];
}

/// Handlers that resolve faults, as those of other languages' runtimes: one leaves the instruction,
/// the other makes the memory accessible, so that the instruction succeeds when it is repeated.
sigjmp_buf before_fault;
void leave(int) { siglongjmp(before_fault, 1); }
constexpr std::size_t page_bytes = 4096;
void give_access(int) { ::mprotect(nowhere, page_bytes, PROT_READ | PROT_WRITE); }
void use_memory_without_access() {
  nowhere =
      static_cast<int*>(::mmap(nullptr, page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  crash_in_the_program();
}

using Behaviour = std::function<int()>;

/// Does so as a rank of the world.
Behaviour in_the_world(Behaviour behaviour) {
  return [behaviour = std::move(behaviour)] {
    const auto group = join();
    return behaviour();
  };
}
/// The same once all ranks have joined.
Behaviour after_a_barrier(Behaviour behaviour) {
  return [behaviour = std::move(behaviour)] {
    const auto group = join();
    group->barrier().wait();
    return behaviour();
  };
}

/// Causes a fault that the handler resolves, and goes on in barriers.
Behaviour with_handler(void (*handler)(int), const std::function<void()>& fault) {
  return [=]() -> int {
    ::signal(SIGSEGV, handler);
    const auto group = join();
    fault();
    group->barrier().wait();
    say("resolved");
    barriers(*group);
  };
}

const std::map<std::string, Behaviour, std::less<>> behaviours{
    {"crash", after_a_barrier(crash_in_the_program)},
    {"abort", after_a_barrier([]() -> int { std::abort(); })},
    {"stack-overflow", after_a_barrier([] { return overflow_the_stack(0); })},
    {"crash-in-a-thread", after_a_barrier([] {
       std::thread([] { crash_in_the_program(); }).join();
       return 0;
     })},
    {"fault-that-is-left", with_handler(leave,
                                        [] {
                                          if (sigsetjmp(before_fault, 1) == 0)
                                            crash_in_the_program();
                                        })},
    {"fault-that-is-mended", with_handler(give_access, use_memory_without_access)},
    {"fault-that-is-mended-in-a-child",
     []() -> int {
       ::signal(SIGSEGV, give_access);
       const auto group = join();
       if (fork() != 0) barriers(*group);
       use_memory_without_access();
       say("resolved");
       _exit(0);
     }},
    {"spin", after_a_barrier(spin_in_the_program)},
    {"leave", [] { return join(), 0; }},
    {"leave-before-init", [] { return 0; }},
    {"exit-3", [] { return join(), 3; }},
    {"throw", in_the_world([]() -> int { throw std::logic_error("this rank threw"); })},
    {"segfault", in_the_world([] {
       ::signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler of their own
       return raise(SIGSEGV);
     })},
    {"kill-9", in_the_world([] { return raise(SIGKILL); })},
    {"stop", in_the_world([] { return raise(SIGSTOP); })},
    {"late", in_the_world([] { return await_failure(), 1; })},
    {"never-init", []() -> int { sleep_on(); }},
    {"leave-and-hang", []() -> int { return join().reset(), sleep_on(), 0; }},
    {"leave-and-stop", []() -> int { return join().reset(), raise(SIGSTOP); }},
    {"leave-and-compute",
     []() -> int {
       join().reset();
       for (std::atomic<long> i = 0;; ++i) {
       }
     }},
    {"leave-and-exec",
     []() -> int { return join().reset(), execlp("sleep", "sleep", "1000", nullptr); }},
    {"hang-in-destructor",
     [] {
       static const struct Hanging {
         ~Hanging() { sleep_on(); }
       } hanging;
       join();
       return 0;
     }},
    {"throw-and-end-late",
     []() -> int {
       const auto group = join();
       group->fail("disk full");
       sleep_on();
     }},
    {"share-memory",
     [] {
       const auto group = join();
       group->allocate(std::size_t{256} << 20);
       return 0;
     }},
    {"take-memory", in_the_world([]() -> int {
       std::vector<std::string> taken;
       for (;;) taken.emplace_back(std::size_t{1} << 20, 'x');
     })},
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
    {"hidden-descendant", in_the_world([] {
       start_descendant(true);
       return 4;
     })},
    {"descriptors",
     [] {
       const auto group = join();
       print_descriptors();
       group->barrier().wait();
       return 0;
     }},
};

/// What a rank does that fails together with others: it records and prints an error, and ends.
struct Failing {
  enum class End { at_once, after_others, never };
  std::optional<ErrorRecord> error{};  ///< repeats: that of the chosen rank
  const char* printed = nullptr;
  End end = End::at_once;
};

const ErrorRecord disk_full{.text = "disk full"};

/// Ranks that all fail: the chosen rank, which has the cause although most end after the others,
/// and what the others do once the launcher knows the chosen rank.
const std::map<std::string, std::pair<Failing, Failing>, std::less<>> failing_together{
    {"last-with-own-error",
     {{disk_full, nullptr, Failing::End::after_others},
      {ErrorRecord{.repeats = true, .text = "the chosen rank: disk full"}}}},
    {"printed-error", {{disk_full, "program: disk full"}, {}}},
    {"raised-error",
     {{ErrorRecord{.raised = true, .text = "disk full"}, "disk full", Failing::End::after_others},
      {ErrorRecord{.repeats = true, .raised = true, .text = "disk full"}, "disk full"}}},
    {"last-after-another-caught-an-error",
     {{{}, "disk full", Failing::End::after_others},
      {ErrorRecord{.raised = true, .text = "caught"}}}},
    {"last-with-printed-error",
     {{disk_full, "program: disk full", Failing::End::after_others}, {disk_full, "a warning"}}},
    {"never-ends-with-own-error", {{disk_full, nullptr, Failing::End::never}, {}}},
    {"last-with-stderr", {{{}, "disk full", Failing::End::after_others}, {}}},
};

int fail(const Failing& failing, int rank, int chosen) {
  if (auto error = failing.error) {
    if (error->repeats) error->rank = chosen;
    world()->record_error(rank, *error, rank);
  }
  if (failing.printed != nullptr) std::cerr << failing.printed << std::endl;
  auto& pid = world()->rank(chosen).pid;
  if (rank == chosen) lockstep::host::publish_pid(world()->rank(rank), getpid());
  while (pid.load() == 0) std::this_thread::yield();
  if (failing.end == Failing::End::never) sleep_on();
  if (failing.end == Failing::End::after_others) await_failure();
  return 1;
}

/// Steps of known length, for `lockstep tune`: a barrier and a pause each. The pause is that of the
/// formula of tune::Scaling. Units: ms.
Behaviour steps(double (*pause_of)(double threads, double ranks),
                int most = std::numeric_limits<int>::max(), bool are_counted = true) {
  return [=] {
    const auto group = join();
    const double threads = std::atoi(std::getenv("OMP_NUM_THREADS"));
    const std::chrono::duration<double, std::milli> pause(pause_of(threads, group->size()));
    for (int step = 0; step < most; ++step) {
      group->barrier().wait();
      std::this_thread::sleep_for(pause);
      if (are_counted) group->count_step();
    }
    return 0;
  };
}

double faster_by_ranks(double /*threads*/, double ranks) { return ranks > 1 ? 24 : 200; }
double faster_by_threads(double threads, double ranks) {
  return 1 + 24 / threads + (ranks > 1 ? 200 * ranks : 0);
}

/// Behaviours that are the same on all ranks.
const std::map<std::string, Behaviour, std::less<>> of_all_ranks{
    {"finish", [] { return join()->barrier().wait(), 0; }},
    {"steps-faster-by-ranks", steps(faster_by_ranks)},
    {"steps-faster-by-threads", steps(faster_by_threads)},
    {"three-steps", steps(faster_by_ranks, 3)},
    {"steps-without-a-count", steps(faster_by_ranks, std::numeric_limits<int>::max(), false)}};

int run(std::string_view behaviour, int chosen) {
  say("pid " + std::to_string(getpid()));
  const int rank = Environment::get().rank.value();
  if (const auto found = of_all_ranks.find(behaviour); found != of_all_ranks.end()) {
    return found->second();
  }
  if (const auto found = failing_together.find(behaviour); found != failing_together.end()) {
    return fail(rank == chosen ? found->second.first : found->second.second, rank, chosen);
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
  if (!of_all_ranks.contains(behaviour) && !behaviours.contains(behaviour) &&
      !failing_together.contains(behaviour)) {
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
