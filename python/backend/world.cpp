#include "backend/world.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "backend/errors.h"
#include "comm/host/host.h"
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

}  // namespace

std::shared_ptr<lockstep::Communicator> join_world(const c10::intrusive_ptr<c10d::Store>& store,
                                                   int rank, int size,
                                                   std::chrono::milliseconds timeout) {
  if (const auto why = lockstep::host::available(); !why.empty()) {
    fail("lockstep init: shared memory does not work on this machine: " + why);
  }
  std::string text;
  if (rank == 0) {
    text = answer(*store, size);
    set(*store, job_key, text);
  } else {
    set(*store, host_key(rank),
        lockstep::detail::this_host() + "\n" + lockstep::detail::host_name());
    text = get(*store, job_key);
  }
  if (!text.starts_with("job ")) fail(text);
  return with_python_errors([&] {
    const auto world = lockstep::host::rendezvous(text, rank, size, timeout);
    // Every rank has read the job's name now, and rank 0 the names of hosts.
    remove(*store, rank == 0 ? job_key : host_key(rank));
    return lockstep::host::create(world, rank,
                                  {.timeout = timeout,
                                   .threads_per_rank = at::get_num_threads(),
                                   .map_heaps = false,
                                   .watch = true});
  });
}

}  // namespace lockstep_torch
