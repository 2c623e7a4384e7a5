#include "backend/membership.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "backend/errors.h"
#include "backend/launched_world.h"
#include "backend/progress.h"
#include "comm/cost/cost.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/rendezvous.h"
#include "core/environment.h"
#include "core/system/topology.h"
#include "group/store_meeting.h"
#include "join/join_world.h"
#include "lockstep/error.h"

namespace lockstep_torch {
namespace {

using lockstep::Environment;
using lockstep::host::JoinCheck;

constexpr const char* offer_key = "lockstep/offer";

void set(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

/// A later process group may use the same store under the same names.
void remove(c10d::Store& store, const std::string& key) {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {  // not all stores can remove keys
  }
}

std::string take(c10d::Store& store, const std::string& key) {
  const auto value = store.get(key);
  remove(store, key);
  return {value.begin(), value.end()};
}

/// A name that no other process group of this machine has.
std::string new_job() {
  static std::atomic<int> number{0};
  std::random_device random;
  return c10::str("torch ", ::getpid(), " ", number++, " ", random(), random());
}

/// The host of a member and a line end; "mpi" follows if the member can use MPI. Ranks with the
/// same host share memory.
std::string place_of(const Membership& membership) {
  const auto& host = Environment::get().host;
  const bool is_default = membership.ranks.empty();
  const auto rank = static_cast<std::size_t>(membership.rank);
  const bool by_mpi = uses_mpi(is_default ? membership.rank : membership.ranks[rank],
                               is_default ? membership.size : 0);
  return (host.empty() ? lockstep::detail::this_host() : host) + (by_mpi ? "\nmpi" : "\n");
}

std::string host_of(const std::string& place) { return place.substr(0, place.find('\n')); }

// How the members of a group exchange data: the beginning of its job's name.
constexpr std::string_view in_memory = "job ";
constexpr std::string_view over_mpi = "mpi ";
constexpr std::string_view over_tcp = "tcp ";

/// Rank 0's answer on every member, once rank 0 has a text of each. topic: of the store's keys,
/// each of which one rank sets and one rank takes.
std::string agree(c10d::Store& store, const Membership& membership, const char* topic,
                  const std::string& own,
                  const std::function<std::string(const std::vector<std::string>&)>& answer) {
  const auto key = [&](const char* side, int rank) {
    return c10::str("lockstep/", topic, "/", side, "/", rank);
  };
  if (membership.rank != 0) {
    set(store, key("of", membership.rank), own);
    return take(store, key("for", membership.rank));
  }
  std::vector<std::string> all{own};
  for (int rank = 1; rank < membership.size; ++rank) all.push_back(take(store, key("of", rank)));
  const auto text = answer(all);
  for (int rank = 1; rank < membership.size; ++rank) set(store, key("for", rank), text);
  return text;
}

/// The name of a new job of members at these places.
std::string job_of(const std::vector<std::string>& places) {
  const auto on_one_host = [&](const std::string& place) {
    return host_of(place) == host_of(places.front());
  };
  const auto by_mpi = [](const std::string& place) { return place.ends_with("\nmpi"); };
  const auto way = std::ranges::all_of(places, on_one_host) ? in_memory
                   : std::ranges::all_of(places, by_mpi)    ? over_mpi
                                                            : over_tcp;
  return std::string(way) + new_job();
}

/// A number above those of all members.
std::string number_above(const std::vector<std::string>& numbers) {
  int last = 0;
  for (const auto& number : numbers) last = std::max(last, std::stoi(number));
  return std::to_string(last + 1);
}

/// Watches the processes of some ranks of a default group on one host.
class MemberWatch {
 public:
  MemberWatch(std::shared_ptr<lockstep::host::World> world, const std::vector<int>& ranks)
      : world_(std::move(world)),
        ranks_(ranks),
        watch_(*world_, lockstep::host::Options{.watch = true}) {}

  std::optional<std::string> ended() {
    for (const int rank : ranks_) {
      if (watch_.status_of(rank) == lockstep::host::RankStatus::joined) continue;
      return c10::str("rank ", rank, " of the default group has left it or ended, expected all ",
                      ranks_.size(), " members to create the group");
    }
    return std::nullopt;
  }

 private:
  std::shared_ptr<lockstep::host::World> world_;
  std::vector<int> ranks_;
  lockstep::host::PeerWatch watch_;
};

/// A default group that this process is a member of. It does not keep the group's world.
struct DefaultGroup {
  c10::weak_intrusive_ptr<c10d::Store> store;
  std::string job;
  std::weak_ptr<lockstep::host::World> memory;  ///< of a group on one host
  std::weak_ptr<lockstep::Communicator> communicator;
  std::shared_ptr<std::mutex> mutex;  ///< World::mutex
  std::vector<int> hosts;             ///< of its ranks

  bool on_one_host(const std::vector<int>& ranks) const {
    const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
    return std::ranges::all_of(ranks, [&](int rank) { return host(rank) == host(ranks.front()); });
  }
  /// Why one of these ranks cannot join a group. Nothing is checked if the default group has been
  /// destroyed.
  JoinCheck check(const std::vector<int>& ranks) const {
    if (auto world = memory.lock()) {
      return [watch = std::make_shared<MemberWatch>(world, ranks)] { return watch->ended(); };
    }
    return [world = World{communicator.lock(), mutex}] { return failure_of(world); };
  }
};

std::mutex default_groups_mutex;
std::vector<DefaultGroup> default_groups;  ///< of this process, one of each store

void add_default_group(DefaultGroup&& group) {
  const std::lock_guard lock(default_groups_mutex);
  std::erase_if(default_groups, [&](const DefaultGroup& other) {
    return other.store.expired() || other.store.lock() == group.store.lock();
  });
  default_groups.push_back(std::move(group));
}

std::optional<DefaultGroup> find_default_group(const c10::intrusive_ptr<c10d::Store>& store) {
  const std::lock_guard lock(default_groups_mutex);
  for (const auto& group : default_groups) {
    if (group.store.lock() == store) return group;
  }
  return std::nullopt;
}

/// The store behind all prefixes.
c10::intrusive_ptr<c10d::Store> underlying(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

}  // namespace

// Note [How members find each other]
// The members of the default group exchange their hosts and a random name through the store, which
// costs two waits for a file or a connection. That name and the group's own name then name the
// rendezvous of every later group on one host: no other process has both names. All members of a
// later group are members of the default group, so all do the same. While they wait for each other,
// they watch each other's processes: no operation is in progress that would fail when a member
// ends. Where the default group has another backend, every group uses the store.
// join_named() of the library makes worlds by names, too, but watches no process before all ranks
// have joined.
// On several hosts, a group is a world of its own over TCP, whose rank 0 writes its addresses into
// the group's store. If MPI's launcher has started all members with their ranks, the group is one
// of the launcher's world that only its members create. The store gives them its number.

namespace {

lockstep::host::Options options(std::chrono::milliseconds timeout) {
  return {.timeout = timeout,
          .threads_per_rank = at::get_num_threads(),
          .map_heaps = false,
          .watch = true};
}

World join_over_mpi(c10d::Store& store, const Membership& membership, const std::string& job,
                    const JoinCheck& check, std::chrono::milliseconds timeout) {
  const auto& launched = launched_world(timeout);
  auto& all = *launched.communicator;
  auto members = membership.ranks;
  if (members.empty()) {
    members.resize(static_cast<std::size_t>(membership.size));
    std::iota(members.begin(), members.end(), 0);
  }
  // Above that of every group over MPI that a member has been in.
  const auto last = std::to_string(lockstep::hierarchical::last_group(all));
  const auto number = std::stoi(agree(store, membership, "number", last, number_above));
  World world{.communicator = lockstep::hierarchical::new_group(
                  all, {.members = members,
                        .number = number,
                        .job = job,
                        .inside = options(timeout),
                        .check =
                            [&] {
                              const auto why = check();
                              return why ? why : failure_of(launched);
                            }}),
              .mutex = launched.mutex};
  const std::lock_guard lock(*world.mutex);
  world.communicator->barrier({.timeout = timeout}).wait();
  return world;
}

World join_over_tcp(const c10::intrusive_ptr<c10d::Store>& store, const Membership& membership,
                    const JoinCheck& check, std::chrono::milliseconds timeout) {
  auto meeting =
      lockstep::detail::meet_by_store(store, offer_key, membership.rank, membership.size);
  meeting.on_wait = [&] {
    if (const auto why = check()) throw lockstep::CommError("lockstep init: " + *why);
  };
  const auto inside = options(timeout);
  World world{.communicator = lockstep::hierarchical::create(
                  {.make_network_world =
                       [&](const auto& network) { return lockstep::tcp::create(network, meeting); },
                   .network = lockstep::detail::network_options(
                       inside, {.progress = lockstep::ProgressMode::wait}),
                   .inside = inside})};
  if (membership.rank == 0) remove(*store, offer_key);
  return world;
}

}  // namespace

std::optional<std::string> failure_of(const World& world) {
  if (!world.communicator) return std::nullopt;
  const std::lock_guard lock(*world.mutex);
  try {
    world.communicator->make_progress();
    return std::nullopt;
  } catch (const lockstep::Error& error) {
    return error.what();
  }
}

World join_world(const c10::intrusive_ptr<c10d::Store>& store, const Membership& membership,
                 std::chrono::milliseconds timeout) {
  if (const auto why = lockstep::host::available(); !why.empty()) {
    fail("lockstep init: shared memory does not work on this machine: " + why);
  }
  const auto& [rank, size, name, ranks] = membership;
  const bool is_default = ranks.empty();
  const auto shared = underlying(store);
  return with_python_errors([&, rank = rank, size = size] {
    const auto parent = is_default ? std::nullopt : find_default_group(shared);
    const auto job = parent ? parent->job + " group " + name
                            : agree(*store, membership, "job", place_of(membership), job_of);
    const auto members = parent ? parent->check(ranks) : JoinCheck();
    const bool in_main_thread = ::gettid() == ::getpid();
    std::exception_ptr signal;
    const JoinCheck check = [&]() -> std::optional<std::string> {
      try {
        if (in_main_thread) raise_signals();
      } catch (...) {
        signal = std::current_exception();
        return "a signal interrupted its wait";
      }
      return members ? members() : std::nullopt;
    };
    World world;
    std::shared_ptr<lockstep::host::World> memory;
    try {
      if (job.starts_with(in_memory) || (parent && parent->on_one_host(ranks))) {
        memory = lockstep::host::rendezvous(job, rank, size, timeout, check);
        auto settings = options(timeout);
        settings.world_ranks = ranks;
        world.communicator = lockstep::host::create(memory, rank, settings);
      } else if (job.starts_with(over_mpi)) {
        world = join_over_mpi(*store, membership, job, check, timeout);
      } else {
        world = join_over_tcp(store, membership, check, timeout);
      }
    } catch (const lockstep::Error&) {
      if (signal) std::rethrow_exception(signal);
      throw;
    }
    if (is_default) {
      add_default_group({.store = c10::weak_intrusive_ptr<c10d::Store>(shared),
                         .job = job,
                         .memory = memory,
                         .communicator = world.communicator,
                         .mutex = world.mutex,
                         .hosts = world.communicator->hosts()});
    }
    return world;
  });
}

}  // namespace lockstep_torch
