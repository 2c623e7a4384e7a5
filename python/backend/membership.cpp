#include "backend/membership.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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
#include "comm/cost/placement.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/rendezvous.h"
#include "core/environment.h"
#include "core/system/topology.h"
#include "lockstep/error.h"

namespace lockstep_torch {
namespace {

constexpr const char* job_key = "lockstep/job";

std::string host_key(int rank) { return "lockstep/host/" + std::to_string(rank); }
std::string number_key(int rank) { return "lockstep/number/" + std::to_string(rank); }

void set(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::string get(c10d::Store& store, const std::string& key) {
  const auto value = store.get(key);
  return {value.begin(), value.end()};
}

/// A later process group may use the same store under the same names.
void remove(c10d::Store& store, const std::string& key) {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {  // not all stores can remove keys
  }
}

/// A name that no other process group of this machine has.
std::string new_job() {
  static std::atomic<int> number{0};
  std::random_device random;
  return c10::str("torch ", ::getpid(), " ", number++, " ", random(), random());
}

/// The host of a member, and whether the member can use MPI.
struct Place {
  std::string host;    ///< ranks with the same host share memory
  std::string name;    ///< of the host, for error texts
  std::string no_mpi;  ///< why_no_mpi()

  static Place of(const Membership& membership) {
    const auto& host = lockstep::Environment::get().host;
    const bool is_default = membership.ranks.empty();
    const auto rank = static_cast<std::size_t>(membership.rank);
    return {.host = host.empty() ? lockstep::detail::this_host() : host,
            .name = host.empty() ? lockstep::detail::host_name() : host,
            .no_mpi = why_no_mpi(is_default ? membership.rank : membership.ranks[rank],
                                 is_default ? membership.size : 0)};
  }
  static Place from(const std::string& text) {
    const auto host = text.find('\n');
    const auto name = text.find('\n', host + 1);
    return {.host = text.substr(0, host),
            .name = text.substr(host + 1, name - host - 1),
            .no_mpi = text.substr(name + 1)};
  }
  std::string text() const { return host + '\n' + name + '\n' + no_mpi; }
};

constexpr std::string_view on_one_host = "job ";
constexpr std::string_view on_several_hosts = "hosts ";

/// The answer of rank 0: on_one_host or on_several_hosts with a new name, or the text of an error
/// that every rank raises.
std::string answer(c10d::Store& store, const Place& own, int size) {
  int other_host = 0;
  std::string other_name;
  std::string problem = own.no_mpi.empty() ? "" : "rank 0 " + own.no_mpi;
  for (int rank = 1; rank < size; ++rank) {
    const auto place = Place::from(get(store, host_key(rank)));
    if (other_host == 0 && place.host != own.host) {
      other_host = rank;
      other_name = place.name;
    }
    if (problem.empty() && !place.no_mpi.empty()) {
      problem = c10::str("rank ", rank, " ", place.no_mpi);
    }
  }
  if (other_host == 0) return std::string(on_one_host) + new_job();
  if (problem.empty()) return std::string(on_several_hosts) + new_job();
  return c10::str("lockstep init: rank 0 is on host ", own.name, " and rank ", other_host, " of ",
                  size, " on host ", other_name, ", and ", problem,
                  "; expected MPI processes with the ranks that they have in PyTorch. Start ranks "
                  "on several hosts with mpirun, as in `mpirun -np ",
                  size,
                  " --hostfile hosts python program.py`, start all ranks on one host, or use "
                  "backend gloo");
}

/// The answer of rank 0, after the members have told it their places.
std::string exchange(c10d::Store& store, const Membership& membership) {
  const auto own = Place::of(membership);
  std::string text;
  if (membership.rank == 0) {
    text = answer(store, own, membership.size);
    set(store, job_key, text);
  } else {
    set(store, host_key(membership.rank), own.text());
    text = get(store, job_key);
  }
  if (!text.starts_with(on_one_host) && !text.starts_with(on_several_hosts)) fail(text);
  return text;
}

/// A number above that of every group over MPI that a member has been in, the same on all members.
int new_number(c10d::Store& store, const Membership& membership, int last) {
  if (membership.rank != 0) {
    set(store, number_key(membership.rank), std::to_string(last));
    return std::stoi(get(store, number_key(0)));
  }
  for (int rank = 1; rank < membership.size; ++rank) {
    last = std::max(last, std::stoi(get(store, number_key(rank))));
  }
  set(store, number_key(0), std::to_string(last + 1));
  return last + 1;
}

/// The default groups that this process is a member of, by their stores.
class DefaultGroups {
 public:
  struct Entry {
    c10::weak_intrusive_ptr<c10d::Store> store;
    std::string job;
    std::weak_ptr<lockstep::host::World> world;  ///< empty on several hosts
  };

  static DefaultGroups& of_this_process() {
    static DefaultGroups groups;
    return groups;
  }

  void add(Entry&& entry) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry& other) {
      return other.store.expired() || other.store.lock() == entry.store.lock();
    });
    entries_.push_back(std::move(entry));
  }
  std::optional<Entry> find(const c10::intrusive_ptr<c10d::Store>& store) const {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : entries_) {
      if (entry.store.lock() == store) return entry;
    }
    return std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// Watches the processes of some ranks of the default group.
class MemberWatch {
 public:
  /// world: of the default group; null if that has been destroyed, and then nothing is watched.
  MemberWatch(std::shared_ptr<lockstep::host::World> world, const std::vector<int>& ranks)
      : world_(std::move(world)), ranks_(ranks) {
    if (world_) watch_.emplace(*world_, lockstep::host::Options{.watch = true});
  }

  std::optional<std::string> ended() const {
    if (!watch_) return std::nullopt;
    for (const int rank : ranks_) {
      const auto status = watch_->status_of(rank);
      if (status == lockstep::host::RankStatus::joined) continue;
      return c10::str("rank ", rank, " of the default group has left it or ended, expected all ",
                      ranks_.size(), " members to create the group");
    }
    return std::nullopt;
  }

 private:
  std::shared_ptr<lockstep::host::World> world_;
  const std::vector<int>& ranks_;
  mutable std::optional<lockstep::host::PeerWatch> watch_;
};

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
// On several hosts, the processes of the launcher's world have MPI. A group on several hosts is a
// group of that world that only its members create. The store gives them its number.

namespace {

/// Whether some of these ranks of the launcher's world are on different hosts.
bool several_hosts(const lockstep::Communicator& world, const std::vector<int>& ranks) {
  const auto host = [&](int rank) { return world.hosts()[static_cast<std::size_t>(rank)]; };
  return std::ranges::any_of(ranks, [&](int rank) { return host(rank) != host(ranks.front()); });
}

lockstep::host::Options options(std::chrono::milliseconds timeout) {
  return {.timeout = timeout,
          .threads_per_rank = at::get_num_threads(),
          .map_heaps = false,
          .watch = true};
}

World join_over_hosts(c10d::Store& store, const Membership& membership, const std::string& job,
                      std::chrono::milliseconds timeout) {
  auto& launched = LaunchedWorld::join(timeout);
  auto& all = *launched.communicator();
  auto members = membership.ranks;
  if (members.empty()) {
    members.resize(static_cast<std::size_t>(membership.size));
    std::iota(members.begin(), members.end(), 0);
  }
  if (!several_hosts(all, members)) {
    fail(
        "lockstep init: got ranks of one machine with several values of LOCKSTEP_HOST, expected "
        "LOCKSTEP_BACKEND=hierarchical with it; set both on every rank, or none");
  }
  const auto number = new_number(store, membership, lockstep::hierarchical::last_group(all));
  World world{.communicator = lockstep::hierarchical::new_group(
                  all, {.members = members,
                        .number = number,
                        .job = job,
                        .inside = options(timeout),
                        .check = [&] { return launched.failure(); }}),
              .mutex = launched.mutex()};
  const std::lock_guard lock(*world.mutex);
  world.communicator->barrier({.timeout = timeout}).wait();
  remove(store, number_key(membership.rank));
  return world;
}

}  // namespace

World join_world(const c10::intrusive_ptr<c10d::Store>& store, const Membership& membership,
                 std::chrono::milliseconds timeout) {
  if (const auto why = lockstep::host::available(); !why.empty()) {
    fail("lockstep init: shared memory does not work on this machine: " + why);
  }
  const auto& [rank, size, name, ranks] = membership;
  const bool is_default = ranks.empty();
  const auto shared = underlying(store);
  auto& known = DefaultGroups::of_this_process();
  const auto parent = is_default ? std::nullopt : known.find(shared);
  const auto job = parent ? parent->job + " group " + name
                          : with_python_errors([&] { return exchange(*store, membership); });
  const auto remove_places = [&, rank = rank] {
    // Every rank has read the answer now, and rank 0 the places.
    remove(*store, rank == 0 ? job_key : host_key(rank));
  };
  const auto add_default = [&](const std::shared_ptr<lockstep::host::World>& world) {
    if (!is_default) return;
    known.add({.store = c10::weak_intrusive_ptr<c10d::Store>(shared), .job = job, .world = world});
  };
  const auto create = [&, rank = rank](const std::shared_ptr<lockstep::host::World>& world) {
    return World{.communicator = lockstep::host::create(world, rank, options(timeout))};
  };
  return with_python_errors([&, rank = rank, size = size] {
    if (job.starts_with(on_several_hosts)) {
      if (!parent) {
        auto world = join_over_hosts(*store, membership, job, timeout);
        remove_places();
        add_default(nullptr);
        return world;
      }
      const auto& launched = LaunchedWorld::join(timeout);
      if (several_hosts(*launched.communicator(), ranks)) {
        return join_over_hosts(*store, membership, job, timeout);
      }
      return create(
          lockstep::host::rendezvous(job, rank, size, timeout, [&] { return launched.failure(); }));
    }
    if (parent) {
      const MemberWatch watch(parent->world.lock(), ranks);
      return create(
          lockstep::host::rendezvous(job, rank, size, timeout, [&] { return watch.ended(); }));
    }
    const auto world = lockstep::host::rendezvous(job, rank, size, timeout);
    remove_places();
    add_default(world);
    return create(world);
  });
}

}  // namespace lockstep_torch
