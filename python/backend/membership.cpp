#include "backend/membership.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "backend/errors.h"
#include "comm/host/host.h"
#include "comm/host/peer_watch.h"
#include "comm/host/rendezvous.h"
#include "comm/placement.h"
#include "core/topology.h"

namespace lockstep_torch {
namespace {

constexpr const char* job_key = "lockstep/job";

std::string host_key(int rank) { return "lockstep/host/" + std::to_string(rank); }

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

/// The answer of rank 0: "job NAME", or the text of an error that every rank raises.
std::string answer(c10d::Store& store, int size) {
  const auto host = lockstep::detail::this_host();
  const auto name = lockstep::detail::host_name();
  for (int rank = 1; rank < size; ++rank) {
    const auto text = get(store, host_key(rank));
    const auto end = text.find('\n');
    if (text.substr(0, end) == host) continue;
    return c10::str("lockstep init: rank 0 is on host ", name, " and rank ", rank, " of ", size,
                    " on host ", text.substr(end + 1),
                    ", expected all ranks on one host, because PyTorch's ranks exchange data "
                    "through shared memory; start all ranks on one host, or use backend gloo");
  }
  return "job " + new_job();
}

/// The name of the job, after the members have exchanged it and the names of their hosts.
std::string exchange(c10d::Store& store, int rank, int size) {
  std::string text;
  if (rank == 0) {
    text = answer(store, size);
    set(store, job_key, text);
  } else {
    set(store, host_key(rank),
        lockstep::detail::this_host() + "\n" + lockstep::detail::host_name());
    text = get(store, job_key);
  }
  if (!text.starts_with("job ")) fail(text);
  return text;
}

/// The default groups that this process is a member of, by their stores.
class DefaultGroups {
 public:
  struct Entry {
    c10::weak_intrusive_ptr<c10d::Store> store;
    std::string job;
    std::weak_ptr<lockstep::host::World> world;
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
// rendezvous of every later group: its members are on one host, and no other process has both
// names. All members of a later group are members of the default group, so all do the same. While
// they wait for each other, they watch each other's processes: no operation is in progress that
// would fail when a member ends. Where the default group has another backend, every group uses the
// store.

std::shared_ptr<lockstep::Communicator> join_world(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const Membership& membership,
                                                   std::chrono::milliseconds timeout) {
  if (const auto why = lockstep::host::available(); !why.empty()) {
    fail("lockstep init: shared memory does not work on this machine: " + why);
  }
  const auto& [rank, size, name, ranks] = membership;
  const bool is_default = ranks.empty();
  const auto shared = underlying(store);
  auto& known = DefaultGroups::of_this_process();
  const auto parent = is_default ? std::nullopt : known.find(shared);
  const auto job = parent ? parent->job + " group " + name : exchange(*store, rank, size);
  const auto create = [&, rank = rank](const std::shared_ptr<lockstep::host::World>& world) {
    return lockstep::host::create(world, rank,
                                  {.timeout = timeout,
                                   .threads_per_rank = at::get_num_threads(),
                                   .map_heaps = false,
                                   .watch = true});
  };
  return with_python_errors([&, rank = rank, size = size] {
    if (parent) {
      const MemberWatch watch(parent->world.lock(), ranks);
      return create(
          lockstep::host::rendezvous(job, rank, size, timeout, [&] { return watch.ended(); }));
    }
    const auto world = lockstep::host::rendezvous(job, rank, size, timeout);
    // Every rank has read the job's name now, and rank 0 the names of hosts.
    remove(*store, rank == 0 ? job_key : host_key(rank));
    if (is_default) {
      known.add(
          {.store = c10::weak_intrusive_ptr<c10d::Store>(shared), .job = job, .world = world});
    }
    return create(world);
  });
}

}  // namespace lockstep_torch
