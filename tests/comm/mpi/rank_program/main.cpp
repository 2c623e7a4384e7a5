#include <mpi.h>
#include <sys/wait.h>

#include <filesystem>
#include <future>
#include <map>
#include <thread>

#include "lockstep/denormals.h"
#include "tests/comm/mpi/rank_program/measured.h"
#include "tests/comm/mpi/rank_program/process.h"

/// A process of an MPI program that does what its first argument says; the second is up to that.
/// With a third, a letter for each rank, it is on the host of that letter.
namespace lockstep::testing {
namespace {

using Behaviour = std::function<int()>;

/// Does so with the world of all processes.
Behaviour joined(const std::function<void(Communicator&)>& fn) {
  return [fn] { return fn(*join()), 0; };
}

/// The same with hosts as they are.
Behaviour joined_as_found(const std::function<void(Communicator&)>& fn) {
  return [fn] { return fn(*join_as_found()), 0; };
}

Behaviour saying_on_rank_0(const std::function<std::string(Communicator&)>& fn) {
  return joined_as_found([fn](Communicator& group) {
    const auto said = fn(group);
    if (group.rank() == 0) say(said);
  });
}

/// Says what fn throws once all ranks have joined.
Behaviour failing(const std::function<void(const Group&)>& fn,
                  std::chrono::milliseconds timeout = 60s) {
  return [fn, timeout] {
    const auto group = join({.timeout = timeout});
    return expect_failure(group, [&] {
      group->barrier().wait();
      fn(group);
    });
  };
}

/// The same of ranks that rank 1 has left.
Behaviour left_by_rank_1(const std::function<void(Communicator&)>& fn) {
  return [fn] {
    auto group = join();
    if (group->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1));  // others may still join
      group.reset();
      await_release();
      return 0;
    }
    return expect_failure(group, [&] { fn(*group); });
  };
}

/// Sums floats, or doubles.
Work begin_sum(const Group& group, bool of_doubles, std::size_t count) {
  return of_doubles ? group->all_reduce(doubles, count, DType::f64, ReduceOp::sum)
                    : group->all_reduce(floats, count, DType::f32, ReduceOp::sum);
}

/// Does so, and says what it throws.
void say_error(const std::function<void()>& fn, const std::string& before = "") {
  try {
    fn();
  } catch (const Error& error) {
    say(before + error.what());
  }
}

/// Does so in a program that has initialised MPI itself, for so many threads.
int with_own_mpi(int threads, const std::function<void()>& fn) {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, threads, &level);
  say_error(fn);
  MPI_Finalize();
  say("ended");
  return 0;
}

/// The ranks of a host share memory, where the host's groups use it.
void check_places_of_host(Communicator& group) {
  const auto of_host = group.split(group.hosts()[static_cast<std::size_t>(group.rank())], 0);
  const auto memory = of_host->allocate(64);
  require(group.backend() != "hierarchical" || of_host->place_of(memory.get()), group,
          "got no place of memory in the group of a host");
  check_places(*of_host);
}

int conformance() {
  const auto algorithm = messages::parse_algorithm(argument);
  const auto group = join({.timeout = 60s, .algorithm = algorithm});
  check_backend(*group, {.hosts = {hosts.begin(), hosts.end()},
                         .ring = algorithm == messages::Algorithm::ring});
  check_places_of_host(*group);
  check_new_group(*group);
  return 0;
}

void conformance_in_short(Communicator& group) {
  const Sums of_ranks{.hosts = group.hosts()};
  check_in_flight(group, of_ranks);
  check_split(group, of_ranks);
  check_messages(group);
  check_tags(group);
  check_new_group(group);
  check_waits(group);
  say(std::string(group.backend()));
}

/// Splits groups while ranks have outstanding operations that the others begin later or wait for.
void check_split_in_flight(Communicator& group) {
  const auto other = group.split(0, 0);
  std::vector<float> large(1'000'000, 1);
  float word = static_cast<float>(group.rank());
  {
    auto sum = group.all_reduce(large.data(), large.size(), DType::f32, ReduceOp::sum);
    auto barrier = group.barrier();
    if (group.rank() != 0) sum.wait();
    group.split(0, 0)->barrier().wait();
  }
  auto sent = group.rank() == 0 ? group.send(&word, 1, DType::f32, 1) : Work();
  const auto after_send = group.split(0, 0);
  if (group.rank() == 1) group.recv(&word, 1, DType::f32, 0).wait();
  sent.wait();
  auto early = group.rank() == 0 ? other->broadcast(floats, 8, DType::f32, 0) : Work();
  const auto last = group.split(0, 0);
  if (group.rank() != 0) other->broadcast(floats, 8, DType::f32, 0).wait();
  early.wait();
  last->barrier().wait();
  require(large.back() == static_cast<float>(group.size()), group, "split: got another sum");
}

/// Creates groups while their members, of four ranks, have outstanding operations that others
/// complete first.
void check_new_group_in_flight(Communicator& group) {
  std::vector<float> large(1'000'000, 1);
  {
    auto sum = group.all_reduce(large.data(), large.size(), DType::f32, ReduceOp::sum);
    if (group.rank() != 0) sum.wait();
    if (group.rank() != 3) group.new_group(std::vector{0, 1, 2})->barrier().wait();
  }
  auto early = group.rank() == 2 ? group.barrier() : Work();
  if (group.rank() == 1) group.barrier().wait();
  if (group.rank() == 1 || group.rank() == 2) {
    group.new_group(std::vector{2, 1})->barrier().wait();
  }
  if (group.rank() == 0 || group.rank() == 3) group.barrier().wait();
  early.wait();
  require(large.back() == 4, group, "new_group: got another sum");
}

/// Rank 0 receives two messages from any rank. Rank 1 leaves at once, the last after one message.
/// throws: rank 1 leaves by an exception, and the last stays.
int leave_as_sources(bool throws) {
  auto group = join();
  if (group->rank() > 0) {
    if (group->rank() == group->size() - 1) group->send(floats, 4, DType::f32, 0).wait();
    if (!throws) group.reset();
    if (throws && group->rank() == 1) {
      group->recv(floats, 4, DType::f32, 0).wait();  // rank 0 has the message of the last
      std::async(std::launch::deferred, [&] {
        const auto left = std::exchange(group, nullptr);
        throw 1;
      }).wait();
    }
    await_release();
    return 0;
  }
  return expect_failure(group, [&] {
    for (int i = 0; i < 2; ++i) {
      auto received = group->recv(floats, 4, DType::f32, any_source);
      received.wait();
      say("received from " + std::to_string(received.source()));
      if (throws) group->send(floats, 4, DType::f32, 1).wait();
    }
  });
}

const std::map<std::string_view, Behaviour> behaviours{
    {"conformance", conformance},
    {"conformance-in-short", joined_as_found(conformance_in_short)},
    {"in-flight", joined([](Communicator& group) {
       check_split_in_flight(group);
       check_new_group_in_flight(group);
     })},
    // Says why it could not join, and stays.
    {"refused",
     [] {
       say_error([] { join(); }, "Error ");
       await_release();
       return 1;
     }},
    {"halves-over-the-link", saying_on_rank_0(halves_over_the_link)},
    {"both-ways-over-the-link", saying_on_rank_0(both_ways_over_the_link)},
    // Over MPI alone, whatever the hosts are, by an algorithm that comes to a ring.
    {"ring-in-short",
     [] {
       messages::Options options{.timeout = 60s, .algorithm = messages::parse_algorithm(argument)};
       if (!hosts.empty()) options.host = hosts.substr(own_number(), 1);
       const auto group = create_flat(options);
       check_in_flight(*group, {.ring = true});
       check_split(*group, {.ring = true});
       return 0;
     }},
    // Rank 0 selects another algorithm than the others.
    {"other-algorithm",
     [] {
       const auto own = own_number() == 0 ? messages::Algorithm::ring : messages::Algorithm::direct;
       say_error([&] { join({.timeout = 20s, .algorithm = own}); });
       return 0;
     }},
    // Rank 1 averages for another wrapper what the others sum.
    {"other-reduction", failing([](const Group& group) {
       const bool is_other = group->rank() == 1;
       const SourceScope of_wrapper(*group, {.owner = Source::Owner::distributed_optimizer,
                                             .content = Source::Content::gradients,
                                             .number = static_cast<std::uint16_t>(is_other ? 2 : 1),
                                             .bucket = 4});
       const auto op = is_other ? ReduceOp::avg : ReduceOp::sum;
       group->all_reduce(floats, 8, DType::f32, op).wait();
     })},
    // Rank 0 waits for a member that never calls new_group().
    {"new-group-without-a-member",
     failing(
         [](const Group& group) {
           if (group->rank() == 0) group->new_group(std::vector{0, 1});
           group->recv(floats, 1, DType::f32, 0, 0, {.timeout = 30s}).wait();
         },
         6s)},  // MPI_Init is part of it
    // An exception leaves the scope of rank 0's operation, whose memory then goes.
    {"abandon", failing([](const Group& group) {
       if (group->rank() != 0) return group->barrier().wait();
       try {
         std::vector<float> gone(4'000'000, 1);
         auto sum = group->all_reduce(gone.data(), gone.size(), DType::f32, ReduceOp::sum);
         throw std::runtime_error("an error of the program");
       } catch (const std::runtime_error&) {
       }
       group->barrier().wait();
     })},
    // A failure elsewhere reaches ranks that communicate only within their host. It happens during
    // their barriers.
    {"fail-elsewhere", failing([](const Group& group) {
       const int host = group->hosts()[static_cast<std::size_t>(group->rank())];
       const auto local = group->split(host, 0);
       if (group->rank() == 0) {
         for (int rank = 1; rank < group->size(); ++rank)
           group->recv(floats, 1, DType::f32, rank).wait();
         group->fail("this rank gives up");
       } else {
         group->send(floats, 1, DType::f32, 0).wait();
       }
       if (host == 0) group->barrier().wait();
       for (;;) local->barrier().wait();
     })},
    {"other-dtype",
     failing([](const Group& group) { begin_sum(group, group->rank() == 1, 8).wait(); })},
    // The ranks of the second host sum other elements than those of the first.
    {"other-dtype-of-a-host", failing([](const Group& group) {
       begin_sum(group, group->hosts()[static_cast<std::size_t>(group->rank())] > 0, 32).wait();
     })},
    // Two operations differ. The second one is shorter, so that its announcements may be sent
    // first.
    {"other-dtypes", failing([](const Group& group) {
       std::vector<double> large(256), small(1);
       const bool is_other = group->rank() == 1;
       const auto sum = [&](std::vector<double>& data) {
         return is_other
                    ? group->all_reduce(data.data(), data.size(), DType::f64, ReduceOp::sum)
                    : group->all_reduce(data.data(), 2 * data.size(), DType::f32, ReduceOp::sum);
       };
       auto first = sum(large);
       auto second = sum(small);
       if (is_other) second.wait();
       first.wait();
     })},
    // Every rank ends the world at the same time.
    {"all-give-up", failing([](const Group& group) {
       group->fail("this rank gives up");
       group->barrier().wait();
     })},
    // Rank 1 waits in a second group of all ranks, for another wrapper.
    {"deadlock", failing([](const Group& group) {
       const auto second = group->split(0, group->rank());
       const bool is_other = group->rank() == 1;
       auto& own = is_other ? *second : *group;
       const SourceScope of_wrapper(own, {.owner = Source::Owner::distributed_data_parallel,
                                          .content = Source::Content::gradients,
                                          .number = static_cast<std::uint16_t>(is_other ? 2 : 1),
                                          .bucket = 0});
       own.all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
     })},
    // The other ranks are in a barrier.
    {"other-collective", failing([](const Group& group) {
       if (group->rank() == 0) group->all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
       group->barrier().wait();
     })},
    {"other-message", failing([](const Group& group) {
       if (group->rank() == 0) group->send(floats, 4, DType::f32, 1, 7).wait();
       if (group->rank() == 1) group->recv(doubles, 4, DType::f64, 0, 7).wait();
       group->barrier().wait();
     })},
    // Rank 0 waits for another tag than rank 1 sends.
    {"other-tag", failing([](const Group& group) {
       if (group->rank() == 1) group->send(floats, 4, DType::f32, 0, 3).wait();
       if (group->rank() == 0) {
         group->recv(floats, 4, DType::f32, any_source, 8, {.timeout = 300ms}).wait();
       }
       group->barrier().wait();
     })},
    {"sources-leave", [] { return leave_as_sources(false); }},
    {"sources-throw", [] { return leave_as_sources(true); }},
    // The others come when rank 0 has waited too long.
    {"late",
     [] {
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
         } catch (const TimeoutError&) {
           std::ofstream(timed_out).put('x');
           throw;
         }
       });
     }},
    {"leave", left_by_rank_1([](Communicator& group) { group.barrier().wait(); })},
    {"leave-before-a-sum", left_by_rank_1([](Communicator& group) {
       group.all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
     })},
    {"give-up", failing([](const Group& group) {
       if (group->rank() == 1) group->fail("this rank gives up");
       group->barrier().wait();
     })},
    {"overlap", joined(check_overlap)},
    {"no-overlap", joined([](Communicator& group) {
       say("hidden " + std::to_string(check_no_overlap(group).count()));
     })},
    // The program's own MPI, for as many threads as the argument says, and who makes progress.
    {"own-level",
     [] {
       const bool multiple = argument == "multiple";
       return with_own_mpi(multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED, [&] {
         const bool by_thread = mpi::by_thread({.progress = Environment::get().progress});
         say(by_thread ? "by a thread" : "by who waits");
         const auto group = join();
         if (multiple) check_overlap(*group);
       });
     }},
    {"own-mpi",
     [] {
       Group group;
       Work barrier;
       with_own_mpi(MPI_THREAD_FUNNELED, [&] {
         group = join();
         // Refused: MPI serves the main thread alone. The group stays usable.
         std::jthread([&] { say_error([&] { group->barrier().wait(); }); });
         std::vector<std::int64_t> numbers(1000, group->rank() + 1);
         group->all_reduce(numbers.data(), numbers.size(), DType::i64, ReduceOp::product).wait();
         say("product " + std::to_string(numbers.back()));
         barrier = group->barrier();
       });
       say_error([&] { barrier.wait(); });
       say_error([&] { barrier = group->barrier(); });
       return 0;
     }},
    {"one-thread-only", [] { return with_own_mpi(MPI_THREAD_SINGLE, [] { join(); }); }},
    {"one-of-four",
     [] {
       say_error([] { join({.expected_size = 4}); });
       return 0;
     }},
    // Its second process never joins.
    {"late-to-join",
     [] {
       if (own_number() == 1) return ::pause();
       join({.timeout = 1s});
       return 0;
     }},
    // Rank 1 forks children in the middle of an operation: one destroys the group, one exits.
    {"fork-children",
     [] {
       auto group = join();
       std::vector<float> large(1'000'000, 1);
       auto sum = group->all_reduce(large.data(), large.size(), DType::f32, ReduceOp::sum);
       for (int child = 0; group->rank() == 1 && child < 2; ++child) {
         const pid_t pid = ::fork();
         if (pid == 0 && child == 0) {
           const auto refusal = message_of<InvalidArgument>([&] { group->barrier().wait(); });
           group.reset();
           ::_exit(refusal.empty() ? 1 : 0);
         }
         if (pid == 0) std::exit(0);
         int status = 0;
         require(::waitpid(pid, &status, 0) == pid && status == 0, *group, "a child failed");
       }
       sum.wait();
       group->barrier().wait();
       say("all right");
       return 0;
     }},
    // More elements than an int counts: for a machine with 12 GiB to spare.
    {"many-elements",
     [] {
       const auto group = join({.timeout = 300s});
       const std::size_t count = (std::size_t{1} << 31) + 5;
       std::vector<std::uint8_t> data(count, static_cast<std::uint8_t>(group->rank() + 1));
       group->all_reduce(data.data(), count, DType::u8, ReduceOp::sum).wait();
       group->broadcast(data.data(), count, DType::u8, 0).wait();
       const auto expected = static_cast<std::uint8_t>(group->size() * (group->size() + 1) / 2);
       require(std::ranges::count(data, expected) == std::ssize(data), *group, "a sum is wrong");
       if (group->rank() == 0) group->send(data.data(), count, DType::u8, 1).wait();
       if (group->rank() == 1) group->recv(data.data(), count, DType::u8, 0).wait();
       say("all right");
       return 0;
     }},
};

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
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
