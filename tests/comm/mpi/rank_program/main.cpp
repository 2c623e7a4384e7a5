#include <mpi.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/mpi/mpi.h"
#include "core/environment.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/mpi/rank_program/link_bytes.h"
#include "tests/comm/mpi/rank_program/overlap.h"
#include "tests/comm/mpi/rank_program/process.h"

/// A process of an MPI program that does what its first argument says; the second is up to that.
/// With a third, a letter for each rank, it is on the host of that letter.
namespace {

using namespace std::chrono_literals;
using lockstep::Communicator;
using lockstep::DType;
using lockstep::ReduceOp;
using lockstep::testing::argument;
using lockstep::testing::await_release;
using lockstep::testing::doubles;
using lockstep::testing::expect_failure;
using lockstep::testing::floats;
using lockstep::testing::Group;
using lockstep::testing::hosts;
using lockstep::testing::join;
using lockstep::testing::join_as_found;
using lockstep::testing::own_number;
using lockstep::testing::say;

/// Says what fn threw once all ranks have joined.
int fail_after_a_barrier(const std::function<void(const Group&)>& fn,
                         std::chrono::milliseconds timeout = 20s) {
  const auto group = join({{.timeout = timeout}});
  return expect_failure(group, [&] {
    group->barrier().wait();
    fn(group);
  });
}

/// The ranks of a host share memory, where the host's groups use it.
void check_places_of_host(Communicator& group) {
  const auto of_host = group.split(group.hosts()[static_cast<std::size_t>(group.rank())], 0);
  const auto memory = of_host->allocate(64);
  if (group.backend() == "hierarchical" && !of_host->place_of(memory.get())) {
    throw std::runtime_error("got no place of memory in the group of a host");
  }
  lockstep::testing::check_places(*of_host);
}

int conformance() {
  const auto algorithm = lockstep::messages::parse_algorithm(argument);
  const auto group = join({{.timeout = 60s, .algorithm = algorithm}});
  const lockstep::testing::Sums of_ranks{.hosts = {hosts.begin(), hosts.end()},
                                         .ring = algorithm == lockstep::messages::Algorithm::ring};
  lockstep::testing::check_collectives(*group, of_ranks);
  lockstep::testing::check_in_flight(*group, of_ranks);
  lockstep::testing::check_skew(*group);
  lockstep::testing::check_places(*group);
  check_places_of_host(*group);
  lockstep::testing::check_split(*group, of_ranks);
  lockstep::testing::check_messages(*group);
  lockstep::testing::check_waits(*group);
  lockstep::testing::check_tags(*group);
  lockstep::testing::check_new_group(*group);
  lockstep::testing::check_denormals(*group);
  return 0;
}

/// Says why it could not join, and stays.
int refused() {
  try {
    join();
  } catch (const lockstep::Error& error) {
    say("Error " + std::string(error.what()));
  }
  await_release();
  return 1;
}

int which_backend() {
  say(std::string(join()->backend()));
  return 0;
}

int which_backend_is_found() {
  say(std::string(join_as_found()->backend()));
  return 0;
}

int conformance_in_short() {
  const auto group = join_as_found();
  const lockstep::testing::Sums of_ranks{.hosts = group->hosts()};
  lockstep::testing::check_in_flight(*group, of_ranks);
  lockstep::testing::check_skew(*group);
  lockstep::testing::check_split(*group, of_ranks);
  lockstep::testing::check_messages(*group);
  lockstep::testing::check_tags(*group);
  lockstep::testing::check_new_group(*group);
  lockstep::testing::check_waits(*group);
  return 0;
}

int halves_over_the_link() {
  const auto group = join_as_found();
  const auto said = lockstep::testing::halves_over_the_link(*group);
  if (group->rank() == 0) say(said);
  return 0;
}

int both_ways_over_the_link() {
  const auto group = join_as_found();
  const auto said = lockstep::testing::both_ways_over_the_link(*group);
  if (group->rank() == 0) say(said);
  return 0;
}

/// Over MPI alone, whatever the hosts are, by an algorithm that comes to a ring.
int ring_in_short() {
  lockstep::mpi::Options options{
      {.timeout = 60s, .algorithm = lockstep::messages::parse_algorithm(argument)}};
  if (!hosts.empty()) options.host = hosts.substr(own_number(), 1);
  const auto group = lockstep::testing::create_flat(options);
  lockstep::testing::check_in_flight(*group, {.ring = true});
  lockstep::testing::check_split(*group, {.ring = true});
  return 0;
}

/// Rank 0 selects another algorithm than the others.
int other_algorithm() {
  using lockstep::messages::Algorithm;
  const bool first = own_number() == 0;
  try {
    join({{.timeout = 20s, .algorithm = first ? Algorithm::ring : Algorithm::direct}});
  } catch (const lockstep::InvalidArgument& error) {
    say(error.what());
  }
  return 0;
}

/// Rank 0 waits for what it began last first, the others in order.
int out_of_order() {
  const auto group = join();
  std::vector<float> first(100'000, 1), second(100'000, 2);
  auto one = group->all_reduce(first.data(), first.size(), DType::f32, ReduceOp::sum);
  auto two = group->all_reduce(second.data(), second.size(), DType::f32, ReduceOp::sum);
  if (group->rank() == 0) two.wait();
  one.wait();
  two.wait();
  say("sums " + std::to_string(first.back()) + " " + std::to_string(second.front()));
  return 0;
}

/// Rank 1 averages what the others sum.
int other_reduction() {
  return fail_after_a_barrier([](const Group& group) {
    const auto op = group->rank() == 1 ? ReduceOp::avg : ReduceOp::sum;
    group->all_reduce(floats, 8, DType::f32, op).wait();
  });
}

/// Splits groups while ranks have outstanding operations that the others begin later or wait for.
int split_in_flight() {
  const auto group = join();
  const auto other = group->split(0, 0);
  std::vector<float> large(1'000'000, 1);
  float word = static_cast<float>(group->rank());
  {
    auto sum = group->all_reduce(large.data(), large.size(), DType::f32, ReduceOp::sum);
    auto barrier = group->barrier();
    if (group->rank() != 0) sum.wait();
    group->split(0, 0)->barrier().wait();
  }
  auto sent = group->rank() == 0 ? group->send(&word, 1, DType::f32, 1) : lockstep::Work();
  const auto after_send = group->split(0, 0);
  if (group->rank() == 1) group->recv(&word, 1, DType::f32, 0).wait();
  sent.wait();
  auto early = group->rank() == 0 ? other->broadcast(floats, 8, DType::f32, 0) : lockstep::Work();
  const auto last = group->split(0, 0);
  if (group->rank() != 0) other->broadcast(floats, 8, DType::f32, 0).wait();
  early.wait();
  last->barrier().wait();
  say("split, and " + std::to_string(large.back()));
  return 0;
}

/// Creates groups while their members have outstanding operations that others complete first.
int new_group_in_flight() {
  const auto group = join();
  std::vector<float> large(1'000'000, 1);
  {
    auto sum = group->all_reduce(large.data(), large.size(), DType::f32, ReduceOp::sum);
    if (group->rank() != 0) sum.wait();
    if (group->rank() != 3) group->new_group(std::vector{0, 1, 2})->barrier().wait();
  }
  auto early = group->rank() == 2 ? group->barrier() : lockstep::Work();
  if (group->rank() == 1) group->barrier().wait();
  if (group->rank() == 1 || group->rank() == 2) {
    group->new_group(std::vector{2, 1})->barrier().wait();
  }
  if (group->rank() == 0 || group->rank() == 3) group->barrier().wait();
  early.wait();
  say("made, and " + std::to_string(large.back()));
  return 0;
}

/// Rank 0 waits for a member that never calls new_group().
int new_group_without_a_member() {
  const auto group = join({{.timeout = 6s}});  // MPI_Init is part of it
  return expect_failure(group, [&] {
    group->barrier().wait();
    if (group->rank() == 0) {
      group->new_group(std::vector{0, 1});
    } else {
      group->recv(floats, 1, DType::f32, 0, 0, {.timeout = 30s}).wait();
    }
  });
}

/// An exception leaves the scope of rank 0's operation, whose memory then goes.
int abandon() {
  return fail_after_a_barrier([](const Group& group) {
    if (group->rank() != 0) return group->barrier().wait();
    try {
      std::vector<float> gone(4'000'000, 1);
      auto sum = group->all_reduce(gone.data(), gone.size(), DType::f32, ReduceOp::sum);
      throw std::runtime_error("an error of the program");
    } catch (const std::runtime_error&) {
    }
    group->barrier().wait();
  });
}

/// A failure elsewhere reaches ranks that communicate only within their host. It happens during
/// their barriers.
int fail_elsewhere() {
  const auto group = join();
  const auto& hosts_of_ranks = group->hosts();
  const auto local = group->split(hosts_of_ranks[static_cast<std::size_t>(group->rank())], 0);
  return expect_failure(group, [&] {
    if (group->rank() == 0) {
      for (int rank = 1; rank < group->size(); ++rank)
        group->recv(floats, 1, DType::f32, rank).wait();
      group->fail("this rank gives up");
    } else {
      group->send(floats, 1, DType::f32, 0).wait();
    }
    if (hosts_of_ranks[static_cast<std::size_t>(group->rank())] == 0) group->barrier().wait();
    for (;;) local->barrier().wait();
  });
}

int other_dtype() {
  return fail_after_a_barrier([](const Group& group) {
    auto work = group->rank() == 1 ? group->all_reduce(doubles, 8, DType::f64, ReduceOp::sum)
                                   : group->all_reduce(floats, 8, DType::f32, ReduceOp::sum);
    work.wait();
  });
}

/// The ranks of the second host sum other elements than those of the first.
int other_dtype_of_a_host() {
  return fail_after_a_barrier([](const Group& group) {
    auto work = group->hosts()[static_cast<std::size_t>(group->rank())] > 0
                    ? group->all_reduce(doubles, 32, DType::f64, ReduceOp::sum)
                    : group->all_reduce(floats, 32, DType::f32, ReduceOp::sum);
    work.wait();
  });
}

/// Rank 1 sums for another wrapper.
int other_source() {
  return fail_after_a_barrier([](const Group& group) {
    const auto number = static_cast<std::uint16_t>(group->rank() == 1 ? 2 : 1);
    const lockstep::SourceScope of_wrapper(*group,
                                           {.owner = lockstep::Source::Owner::distributed_optimizer,
                                            .content = lockstep::Source::Content::gradients,
                                            .number = number,
                                            .bucket = 4});
    group->all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
  });
}

/// Two operations differ. The second one is shorter, so that its announcements may be sent first.
int other_dtypes() {
  return fail_after_a_barrier([](const Group& group) {
    std::vector<double> large(256), small(1);
    const bool is_other = group->rank() == 1;
    const auto sum = [&](std::vector<double>& data) {
      return is_other ? group->all_reduce(data.data(), data.size(), DType::f64, ReduceOp::sum)
                      : group->all_reduce(data.data(), 2 * data.size(), DType::f32, ReduceOp::sum);
    };
    auto first = sum(large);
    auto second = sum(small);
    if (is_other) second.wait();
    first.wait();
  });
}

/// Every rank ends the world at the same time.
int all_give_up() {
  return fail_after_a_barrier([](const Group& group) {
    group->fail("this rank gives up");
    group->barrier().wait();
  });
}

/// Rank 1 waits in a second group of all ranks, for another wrapper.
int deadlock() {
  const auto group = join({{.timeout = 60s}});
  return expect_failure(group, [&] {
    const auto second = group->split(0, group->rank());
    group->barrier().wait();
    const bool is_other = group->rank() == 1;
    auto& own = is_other ? *second : *group;
    const lockstep::SourceScope of_wrapper(
        own, {.owner = lockstep::Source::Owner::distributed_data_parallel,
              .content = lockstep::Source::Content::gradients,
              .number = static_cast<std::uint16_t>(is_other ? 2 : 1),
              .bucket = 0});
    own.all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
  });
}

/// The other ranks are in a barrier.
int other_collective() {
  return fail_after_a_barrier(
      [](const Group& group) {
        if (group->rank() == 0) group->all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
        group->barrier().wait();
      },
      60s);
}

int other_message() {
  return fail_after_a_barrier([](const Group& group) {
    if (group->rank() == 0) group->send(floats, 4, DType::f32, 1, 7).wait();
    if (group->rank() == 1) group->recv(doubles, 4, DType::f64, 0, 7).wait();
    group->barrier().wait();
  });
}

/// Rank 0 waits for another tag than rank 1 sends.
int other_tag() {
  const auto group = join();
  return expect_failure(group, [&] {
    if (group->rank() == 1) group->send(floats, 4, DType::f32, 0, 3).wait();
    if (group->rank() == 0) {
      group->recv(floats, 4, DType::f32, lockstep::any_source, 8, {.timeout = 300ms}).wait();
    }
    group->barrier().wait();
  });
}

/// Rank 0 receives two messages from any rank. Rank 1 leaves at once, the last after one message.
int sources_leave() {
  auto group = join();
  if (group->rank() > 0) {
    if (group->rank() == group->size() - 1) group->send(floats, 4, DType::f32, 0).wait();
    group.reset();
    await_release();
    return 0;
  }
  return expect_failure(group, [&] {
    for (int i = 0; i < 2; ++i) {
      auto received = group->recv(floats, 4, DType::f32, lockstep::any_source);
      received.wait();
      say("received from " + std::to_string(received.source()));
    }
  });
}

/// The others come when rank 0 has waited too long.
int late() {
  const auto group = join();
  const auto timed_out = std::filesystem::path(argument).parent_path() / "timed-out";
  return expect_failure(group, [&] {
    if (group->rank() > 0) {
      while (!std::filesystem::exists(timed_out)) ::usleep(1000);
      group->barrier().wait();
      return;
    }
    try {
      group->all_reduce(floats, 8, DType::f32, ReduceOp::sum, {.timeout = 200ms}).wait();
    } catch (const lockstep::TimeoutError&) {
      std::ofstream(timed_out).put('x');
      throw;
    }
  });
}

int leave() {
  auto group = join();
  if (group->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // others may still join
    group.reset();
    await_release();
    return 0;
  }
  return expect_failure(group, [&] { group->barrier().wait(); });
}

int give_up() {
  return fail_after_a_barrier([](const Group& group) {
    if (group->rank() == 1) group->fail("this rank gives up");
    group->barrier().wait();
  });
}

/// The program's own MPI, for as many threads as the argument says, and who makes progress.
int own_level() {
  const bool multiple = argument == "multiple";
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED, &level);
  try {
    say(lockstep::mpi::by_thread({.progress = lockstep::Environment::get().progress})
            ? "by a thread"
            : "by who waits");
    const auto group = join();
    if (multiple) lockstep::testing::check_overlap(*group);
  } catch (const lockstep::BackendUnavailable& error) {
    say(error.what());
  }
  MPI_Finalize();
  say("ended");
  return 0;
}

int own_mpi() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  {
    const auto group = join();
    std::vector<std::int64_t> numbers(1000, group->rank() + 1);
    group->all_reduce(numbers.data(), numbers.size(), DType::i64, ReduceOp::product).wait();
    say("product " + std::to_string(numbers.back()));
  }
  MPI_Finalize();
  say("ended");
  return 0;
}

int one_thread_only() {
  MPI_Init(nullptr, nullptr);
  try {
    join();
  } catch (const lockstep::BackendUnavailable& error) {
    say(error.what());
  }
  MPI_Finalize();
  return 0;
}

int one_of_four() {
  try {
    join({{}, 4});
  } catch (const lockstep::BackendUnavailable& error) {
    say(error.what());
  }
  return 0;
}

/// Rank 1 forks children in the middle of an operation: one destroys the group, one exits.
int fork_children() {
  auto group = join();
  std::vector<float> large(1'000'000, 1);
  auto sum = group->all_reduce(large.data(), large.size(), DType::f32, ReduceOp::sum);
  for (int child = 0; group->rank() == 1 && child < 2; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0 && child == 0) {
      bool refused = false;
      try {
        group->barrier().wait();
      } catch (const lockstep::InvalidArgument&) {
        refused = true;
      }
      group.reset();
      ::_exit(refused ? 0 : 1);
    }
    if (pid == 0) std::exit(0);
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid || status != 0)
      throw std::runtime_error("a child failed");
  }
  sum.wait();
  group->barrier().wait();
  say("all right");
  return 0;
}

/// Its second process never joins.
int late_to_join() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  if (rank != nullptr && rank == std::string_view("1")) return ::pause();
  join({{.timeout = 1s}});
  return 0;
}

/// More elements than an int counts: for a machine with 12 GiB to spare.
int many_elements() {
  const auto group = join({{.timeout = 300s}});
  const std::size_t count = (std::size_t{1} << 31) + 5;
  std::vector<std::uint8_t> data(count, static_cast<std::uint8_t>(group->rank() + 1));
  group->all_reduce(data.data(), count, DType::u8, ReduceOp::sum).wait();
  group->broadcast(data.data(), count, DType::u8, 0).wait();
  const auto expected = static_cast<std::uint8_t>(group->size() * (group->size() + 1) / 2);
  for (const auto value : data) {
    if (value != expected) throw std::runtime_error("a sum is wrong");
  }
  if (group->rank() == 0) group->send(data.data(), count, DType::u8, 1).wait();
  if (group->rank() == 1) group->recv(data.data(), count, DType::u8, 0).wait();
  say("all right");
  return 0;
}

const std::map<std::string_view, std::function<int()>> behaviours{
    {"conformance", conformance},
    {"refused", refused},
    {"which-backend", which_backend},
    {"which-backend-is-found", which_backend_is_found},
    {"conformance-in-short", conformance_in_short},
    {"halves-over-the-link", halves_over_the_link},
    {"both-ways-over-the-link", both_ways_over_the_link},
    {"ring-in-short", ring_in_short},
    {"other-algorithm", other_algorithm},
    {"out-of-order", out_of_order},
    {"other-reduction", other_reduction},
    {"split-in-flight", split_in_flight},
    {"new-group-in-flight", new_group_in_flight},
    {"new-group-without-a-member", new_group_without_a_member},
    {"abandon", abandon},
    {"fail-elsewhere", fail_elsewhere},
    {"other-collective", other_collective},
    {"other-dtype", other_dtype},
    {"other-dtype-of-a-host", other_dtype_of_a_host},
    {"other-source", other_source},
    {"other-dtypes", other_dtypes},
    {"all-give-up", all_give_up},
    {"deadlock", deadlock},
    {"other-message", other_message},
    {"other-tag", other_tag},
    {"sources-leave", sources_leave},
    {"late", late},
    {"leave", leave},
    {"give-up", give_up},
    {"own-mpi", own_mpi},
    {"own-level", own_level},
    {"overlap",
     [] {
       lockstep::testing::check_overlap(*join());
       return 0;
     }},
    {"no-overlap",
     [] {
       const auto hidden = lockstep::testing::check_no_overlap(*join());
       say("hidden " + std::to_string(hidden.count()));
       return 0;
     }},
    {"one-thread-only", one_thread_only},
    {"one-of-four", one_of_four},
    {"late-to-join", late_to_join},
    {"fork-children", fork_children},
    {"many-elements", many_elements},
};

}  // namespace

int main(int argc, char** argv) {
  const auto behaviour = behaviours.find(argc > 1 ? argv[1] : "");
  if (behaviour == behaviours.end()) {
    std::cerr << "no such behaviour\n";
    return 99;
  }
  argument = argc > 2 ? argv[2] : "";
  hosts = argc > 3 ? argv[3] : "";
  if (std::getenv("LOCKSTEP_TEST_FLUSHED") != nullptr) lockstep::flush_denormals(true);
  try {
    return behaviour->second();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
