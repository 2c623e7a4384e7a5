#include "tests/device/simulation/nccl_double.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/simulation/nccl_api.h"
#include "tests/device/simulation/nccl_compute.h"
#include "tests/device/simulation/nccl_world.h"
#include "tests/device/simulation/runtime.h"

using lockstep::simulation::Access;
using lockstep::simulation::Kind;
using lockstep::simulation::Stream;
using lockstep::simulation::nccl::Announcement;
using lockstep::simulation::nccl::most_orders;
using lockstep::simulation::nccl::most_ranks;
using lockstep::simulation::nccl::Operation;
using lockstep::simulation::nccl::World;
namespace simulation = lockstep::simulation;
namespace nccl = lockstep::simulation::nccl;

namespace {

constexpr int default_version = 22907;
constexpr auto longest_end = std::chrono::seconds(10);  // of ncclCommAbort and ncclCommDestroy

}  // namespace

/// A rank's communicator. It is never deleted, so that a call after its end is a fault and no
/// crash.
struct ncclComm {
  std::shared_ptr<World> world;
  std::string name;
  std::uint64_t id = 0;  // of the name
  int size = 0, rank = 0, device = 0;
  bool is_blocking = true;

  std::atomic<bool> is_ready{false}, is_finalized{false}, is_destroyed{false}, is_aborted{false};
  std::atomic<int> error{ncclSuccess};
  std::atomic<int> polls{0};
  std::atomic<int> kernels{0};  // launched and not at their end
  std::mutex start_mutex;       // of join()

  // Operations that the host has issued; guarded by issue_mutex.
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sends, receives;
  // Operations that kernels have finished.
  std::atomic<std::uint64_t> collectives_done{0};
  std::array<std::atomic<std::uint64_t>, most_ranks> sends_done{}, receives_done{};
};

namespace {

std::mutex issue_mutex;  // numbers operations in the order in which streams get them
std::mutex faults_mutex;
std::vector<std::string> faults;
std::set<std::string> unjoined_names;

/// Operations that fail: the countdown, and the rank that counts (-1: all).
struct Failure {
  int countdown = 0, result = 0, rank = -1;
};
Failure failure = [] {
  Failure made;
  if (const char* text = std::getenv("LOCKSTEP_NCCL_DOUBLE_FAIL")) {
    std::sscanf(text, "%d:%d", &made.countdown, &made.result);
  }
  return made;
}();
std::atomic<int> slow_init{0};
std::atomic<int> slow_groups{0};
std::atomic<int> version{default_version};

/// NCCL 2.30 lets ranks share a GPU on request.
bool may_share_devices() {
  const char* const text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version >= 23000 && text != nullptr && std::string_view(text) == "1";
}
std::map<std::uint64_t, ncclComm*>& communicators() {  // by address; never deleted
  static auto& all = *new std::map<std::uint64_t, ncclComm*>;
  return all;
}

thread_local std::string last_error;

ncclResult_t fault(ncclResult_t result, const std::string& text) {
  last_error = text;
  // A program that has the devices by LD_PRELOAD does not ask for faults.
  if (std::getenv("LOCKSTEP_SIMULATION") != nullptr) {
    std::cerr << text << std::endl;
    std::_Exit(1);
  }
  const std::lock_guard lock(faults_mutex);
  if (std::ranges::find(faults, text) == faults.end()) faults.push_back(text);
  return result;
}

void pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

/// One operation of a rank.
struct Call {
  Operation operation;
  const void* in;
  void* out;
  std::uint64_t count;
  ncclDataType_t dtype;
  int op;
  int peer;  // or root
  ncclComm* comm;
  Stream* stream;
  std::uint64_t number = 0;  // of its kind and peer, from 1
  std::vector<nccl::Issued> orders = {};
  bool hangs = false;
  // Progress of the kernel.
  int step = 0;
  bool is_done = false;
  std::vector<std::byte> result = {};

  bool is_message() const { return operation >= Operation::send; }
  std::size_t bytes() const { return count * nccl::width(dtype); }
  std::size_t in_bytes() const {
    return operation == Operation::reduce_scatter ? bytes() * ranks() : bytes();
  }
  std::size_t out_bytes() const {
    return operation == Operation::all_gather ? bytes() * ranks() : bytes();
  }
  bool reads() const {
    return operation != Operation::recv &&
           (operation != Operation::broadcast || comm->rank == peer);
  }
  bool writes() const {
    return operation != Operation::send && (operation != Operation::reduce || comm->rank == peer);
  }
  std::size_t ranks() const { return static_cast<std::size_t>(comm->size); }
};

const char* name_of(Operation operation) {
  constexpr const char* names[] = {"AllReduce", "Broadcast", "ReduceScatter", "AllGather",
                                   "Reduce",    "Send",      "Recv"};
  return names[static_cast<int>(operation)];
}

std::string text(int rank, Operation operation, std::uint64_t count, int dtype, int op, int root) {
  auto line = "rank " + std::to_string(rank) + ": " + name_of(operation) + " of " +
              std::to_string(count) + " elements of dtype " + std::to_string(dtype);
  if (operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
      operation == Operation::reduce) {
    line += ", op " + std::to_string(op);
  }
  if (operation == Operation::broadcast || operation == Operation::reduce)
    line += ", root " + std::to_string(root);
  return line;
}
std::string text(const Call& c) {
  return text(c.comm->rank, c.operation, c.count, c.dtype, c.op, c.peer);
}

bool equal(const Announcement& a, const Announcement& b) {
  return a.operation == b.operation && a.count == b.count && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root;
}

void check_orders(const std::vector<const Announcement*>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    for (int i = 0; i < ranks[0]->order_count; ++i) {
      for (int j = 0; j < ranks[r]->order_count; ++j) {
        const auto& a = ranks[0]->orders[i];
        const auto& b = ranks[r]->orders[j];
        if (a.communicator != b.communicator || a.operations == b.operations) continue;
        fault(ncclSuccess, "order: before the same " + std::string(name_of(ranks[0]->operation)) +
                               ", rank 0 issued " + std::to_string(a.operations) +
                               " collectives on another communicator, and rank " +
                               std::to_string(r) + " issued " + std::to_string(b.operations));
      }
    }
  }
}

// Kernels. Each advances what it can and returns true if that was anything.

/// Announces the collective, computes when all have announced, writes when all have read.
bool advance_collective(Call& c) {
  auto& comm = *c.comm;
  auto& world = *comm.world;
  const auto size = static_cast<std::size_t>(comm.size);
  auto& own = world.slots[comm.rank];
  if (c.step == 0) {
    if (comm.collectives_done + 1 != c.number) return false;
    auto& a = own.announcement;
    a = {c.operation, c.count, c.dtype, c.op, c.peer, 0, 0, {}};
    if (c.reads() && c.count > 0) a.in = simulation::arena_offset(c.in);
    for (const auto& order : c.orders) a.orders[a.order_count++] = order;
    own.announced = c.number;
    c.step = 1;
    return true;
  }
  if (c.step == 1) {
    std::vector<const Announcement*> ranks;
    std::vector<const std::byte*> memory;
    for (std::size_t r = 0; r < size; ++r) {
      if (world.slots[r].announced < c.number) {
        if (nccl::has_ended(world.members[r])) comm.error = ncclRemoteError;
        return false;
      }
      ranks.push_back(&world.slots[r].announcement);
      memory.push_back(nccl::memory_of(world.members[r]));
      if (memory.back() == nullptr) return false;  // its process is gone
    }
    const auto different =
        std::ranges::find_if(ranks, [&](const auto* each) { return !equal(*each, *ranks[0]); });
    if (different != ranks.end()) {
      const auto line = [&](std::size_t r) {
        const auto& a = *ranks[r];
        return text(static_cast<int>(r), a.operation, a.count, a.dtype, a.op, a.root);
      };
      fault(ncclSuccess, "mismatch: " + line(0) + "; " +
                             line(static_cast<std::size_t>(different - ranks.begin())));
      c.result.assign(c.out_bytes(), std::byte{0xff});
    } else {
      check_orders(ranks);
      c.result = nccl::compute(ranks, memory, comm.rank);
    }
    own.read = c.number;
    c.step = 2;
    return true;
  }
  for (std::size_t r = 0; r < size; ++r) {
    if (world.slots[r].read < c.number) return false;
  }
  if (c.writes() && !c.result.empty()) {
    std::memcpy(simulation::shadow(c.out), c.result.data(), c.result.size());
  }
  comm.collectives_done = c.number;
  return c.is_done = true;
}

bool advance_send(Call& c) {
  auto& comm = *c.comm;
  auto& done = comm.sends_done[static_cast<std::size_t>(c.peer)];
  auto& message = comm.world->messages[comm.rank][c.peer];
  if (c.step == 0) {
    if (done + 1 != c.number) return false;
    message.count = c.count;
    message.dtype = c.dtype;
    message.in = c.count > 0 ? simulation::arena_offset(c.in) : 0;
    message.sent = c.number;
    c.step = 1;
    return true;
  }
  if (message.taken < c.number) return false;
  done = c.number;
  return c.is_done = true;
}

bool advance_recv(Call& c) {
  auto& comm = *c.comm;
  auto& done = comm.receives_done[static_cast<std::size_t>(c.peer)];
  auto& message = comm.world->messages[c.peer][comm.rank];
  if (done + 1 != c.number || message.sent < c.number) return false;
  const auto* memory = nccl::memory_of(comm.world->members[c.peer]);
  if (memory == nullptr) return false;
  if (message.count != c.count || message.dtype != c.dtype) {
    fault(ncclSuccess,
          "mismatch: " + text(c.peer, Operation::send, message.count, message.dtype, 0, 0) + "; " +
              text(c));
    if (c.count > 0) std::memset(simulation::shadow(c.out), 0xff, c.bytes());
  } else if (c.count > 0) {
    std::memcpy(simulation::shadow(c.out), memory + message.in, c.bytes());
  }
  message.taken = c.number;
  done = c.number;
  return c.is_done = true;
}

bool advance(Call& c) {
  if (c.is_done) return false;
  if (c.comm->is_aborted) return c.is_done = true;
  if (c.hangs || c.comm->error != ncclSuccess) return false;
  if (c.operation == Operation::send) return advance_send(c);
  if (c.operation == Operation::recv) return advance_recv(c);
  return advance_collective(c);
}

/// The calls of a group on one stream make progress together.
void run_kernel(std::vector<Call>& calls) {
  while (!simulation::exiting()) {
    bool progress = false, done = true;
    for (auto& c : calls) progress = advance(c) || progress;
    for (const auto& c : calls) done = done && c.is_done;
    if (done) break;
    if (!progress) pause_briefly();
  }
  for (const auto& c : calls) --c.comm->kernels;
}

// Issuing.

void note_orders(std::vector<Call>& calls) {
  for (auto& c : calls) {
    for (const auto& [address, other] : communicators()) {
      if (other->device != c.comm->device || !other->is_ready) continue;
      if (other->is_destroyed || other->is_aborted) continue;
      const bool is_in_group =
          std::ranges::any_of(calls, [&, o = other](const Call& each) { return each.comm == o; });
      if (is_in_group || c.orders.size() == most_orders) continue;
      c.orders.push_back({other->id, other->collectives});
    }
  }
}

/// Returns true if the failure that a test asked for is this operation.
bool is_failing(const ncclComm& comm) {
  if (failure.countdown == 0 || (failure.rank >= 0 && failure.rank != comm.rank)) return false;
  return --failure.countdown == 0;
}

void launch(std::vector<Call> calls) {
  const std::lock_guard lock(issue_mutex);
  note_orders(calls);
  std::vector<std::pair<Stream*, std::vector<Call>>> by_stream;
  for (auto& c : calls) {
    auto& comm = *c.comm;
    if (c.operation == Operation::send) {
      c.number = ++comm.sends[c.peer];
    } else if (c.operation == Operation::recv) {
      c.number = ++comm.receives[c.peer];
    } else {
      c.number = ++comm.collectives;
    }
    if (is_failing(comm)) {
      c.hangs = true;
      comm.error = failure.result;
    }
    ++comm.kernels;
    auto found =
        std::ranges::find(by_stream, c.stream, &std::pair<Stream*, std::vector<Call>>::first);
    if (found == by_stream.end()) found = by_stream.insert(found, {c.stream, {}});
    found->second.push_back(c);
  }
  for (auto& [stream, mine] : by_stream) {
    std::vector<Access> accesses;
    std::string name = "nccl";
    for (const auto& c : mine) {
      if (c.reads()) accesses.push_back({c.in, c.in_bytes(), false});
      if (c.writes()) accesses.push_back({c.out, c.out_bytes(), true});
      name += name_of(c.operation);
    }
    auto held = std::make_shared<std::vector<Call>>(std::move(mine));
    simulation::enqueue(stream, name, Kind::collective, accesses, [held] { run_kernel(*held); });
  }
}

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;
thread_local ncclResult_t group_result = ncclSuccess;

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* first = static_cast<const std::byte*>(a);
  const auto* second = static_cast<const std::byte*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

/// In place means that a rank's part of the larger buffer is the smaller one.
bool may_overlap(const Call& c) {
  if (!c.reads() || !c.writes() || !overlap(c.in, c.in_bytes(), c.out, c.out_bytes())) return true;
  const auto* in = static_cast<const std::byte*>(c.in);
  const auto* out = static_cast<const std::byte*>(c.out);
  const auto part = static_cast<std::size_t>(c.comm->rank) * c.bytes();
  if (c.operation == Operation::all_gather) return in == out + part;
  if (c.operation == Operation::reduce_scatter) return out == in + part;
  return in == out;
}

ncclResult_t check_memory(const Call& c, const void* memory, const char* which) {
  int device = -1;
  if (!simulation::is_device_memory(memory, &device)) {
    return fault(ncclInvalidArgument, text(c) + ": " + which + " is memory of the host");
  }
  if (device != c.comm->device) {
    return fault(ncclInvalidArgument,
                 text(c) + ": " + which + " is memory of device " + std::to_string(device) +
                     ", the communicator has device " + std::to_string(c.comm->device));
  }
  return ncclSuccess;
}

bool is_known(ncclComm* comm) {
  const std::lock_guard lock(issue_mutex);
  return communicators().contains(reinterpret_cast<std::uint64_t>(comm));
}

/// Checks that calls of the communicator are allowed.
ncclResult_t check_life(ncclComm* comm, const char* call) {
  if (comm == nullptr || !is_known(comm)) {
    return fault(ncclInvalidArgument, std::string(call) + ": no communicator");
  }
  const auto who = std::string(call) + " by rank " + std::to_string(comm->rank);
  if (comm->is_aborted) return fault(ncclInvalidUsage, who + " after ncclCommAbort");
  if (comm->is_destroyed) return fault(ncclInvalidUsage, who + " after ncclCommDestroy");
  if (comm->is_finalized) return fault(ncclInvalidUsage, who + " after ncclCommFinalize");
  if (!comm->is_ready) {
    return fault(ncclInvalidUsage, who + " before the communicator's start has ended");
  }
  return ncclSuccess;
}

ncclResult_t check(Call& c) {
  if (const auto life = check_life(c.comm, name_of(c.operation)); life != ncclSuccess) return life;
  auto& comm = *c.comm;
  if (comm.error != ncclSuccess) return static_cast<ncclResult_t>(comm.error.load());
  if (nccl::width(c.dtype) == 0) return fault(ncclInvalidArgument, text(c) + ": no such dtype");
  if (c.peer < 0 || c.peer >= comm.size) {
    return fault(ncclInvalidArgument, text(c) + ": no rank " + std::to_string(c.peer));
  }
  if (c.stream == nullptr) c.stream = simulation::stream(comm.device, 0);
  if (simulation::device_of(c.stream) != comm.device) {
    return fault(ncclInvalidArgument, text(c) + ": a stream of another device");
  }
  if (c.is_message() && c.peer == comm.rank && group_depth == 0) {
    return fault(ncclInvalidUsage, text(c) + ": a message to itself needs a group");
  }
  if (c.op < 0 || c.op >= ncclNumOps) {
    return fault(ncclInvalidArgument, text(c) + ": no such operator");
  }
  if (c.count == 0) return ncclSuccess;
  if (c.reads()) {
    if (const auto r = check_memory(c, c.in, "the source"); r != ncclSuccess) return r;
  }
  if (c.writes()) {
    if (const auto r = check_memory(c, c.out, "the destination"); r != ncclSuccess) return r;
  }
  if (!may_overlap(c)) {
    return fault(ncclInvalidArgument, text(c) + ": buffers overlap, and are not in place");
  }
  return ncclSuccess;
}

ncclResult_t issue(Call c) {
  const auto result = check(c);
  if (result != ncclSuccess) {
    if (group_depth > 0 && group_result == ncclSuccess) group_result = result;
    return result;
  }
  if (group_depth > 0) {
    group_calls.push_back(std::move(c));
  } else {
    launch({std::move(c)});
  }
  return ncclSuccess;
}

// The start and the end of communicators.

void unlink_unjoined() {
  const std::lock_guard lock(faults_mutex);
  for (const auto& name : unjoined_names) nccl::remove_name(name);
}

/// Enters the world of the communicator's name.
ncclResult_t enter(ncclComm& comm) {
  static const int at_exit = std::atexit(unlink_unjoined);
  static_cast<void>(at_exit);
  comm.world = nccl::open_world(comm.name);
  comm.id = std::hash<std::string>()(comm.name);
  {
    const std::lock_guard lock(faults_mutex);
    unjoined_names.insert(comm.name);
  }
  int expected = 0;
  if (!comm.world->size.compare_exchange_strong(expected, comm.size) && expected != comm.size) {
    return fault(ncclInvalidArgument, "ncclCommInitRankConfig by rank " +
                                          std::to_string(comm.rank) + ": " +
                                          std::to_string(comm.size) + " ranks, another rank has " +
                                          std::to_string(expected));
  }
  auto& member = comm.world->members[comm.rank];
  if (member.has_joined.exchange(1) != 0) {
    return fault(ncclInvalidUsage,
                 "ncclCommInitRankConfig: two ranks " + std::to_string(comm.rank));
  }
  member.process = ::getpid();
  member.device = comm.device;
  member.arena = simulation::arena_file(comm.device).descriptor;
  // NCCL, too, takes the host from this variable.
  const char* const host = std::getenv("NCCL_HOSTID");
  member.host = std::hash<std::string_view>()(host != nullptr ? host : "");
  ++comm.world->joined;
  return ncclSuccess;
}

/// Advances the start of a communicator. ncclInProgress: others have not come yet.
ncclResult_t advance_start(ncclComm& comm) {
  const std::lock_guard lock(comm.start_mutex);
  if (comm.is_ready || comm.error != ncclSuccess) {
    return static_cast<ncclResult_t>(comm.error.load());
  }
  if (comm.world->joined < comm.size) return ncclInProgress;
  nccl::remove_name(comm.name);
  {
    const std::lock_guard names(faults_mutex);
    unjoined_names.erase(comm.name);
  }
  for (int a = 0; a < comm.size; ++a) {
    for (int b = 0; b < a && !may_share_devices(); ++b) {
      if (comm.world->members[a].device != comm.world->members[b].device) continue;
      if (comm.world->members[a].host != comm.world->members[b].host) continue;
      last_error = "Duplicate GPU detected: rank " + std::to_string(b) + " and rank " +
                   std::to_string(a) + " both on device " +
                   std::to_string(comm.world->members[a].device);
      comm.error = ncclInvalidUsage;
    }
  }
  if (comm.error != ncclSuccess) return static_cast<ncclResult_t>(comm.error.load());
  if (comm.polls > 0) return --comm.polls, ncclInProgress;
  comm.is_ready = true;
  return ncclSuccess;
}

/// Waits, or leaves the rest to ncclCommGetAsyncError.
ncclResult_t start(ncclComm& comm) {
  if (!comm.is_blocking) {
    comm.polls = slow_init.load();
    return ncclInProgress;
  }
  for (;;) {
    const auto result = advance_start(comm);
    if (result != ncclInProgress || comm.is_aborted || simulation::exiting()) return result;
    pause_briefly();
  }
}

ncclResult_t check_config(const ncclConfig_t* config) {
  if (config == nullptr) return ncclSuccess;
  if (config->magic != nccl_magic || config->size < sizeof(ncclConfig_t)) {
    return fault(ncclInvalidArgument, "a configuration that was not initialised");
  }
  if (config->blocking != nccl_undefined && config->blocking != 0 && config->blocking != 1) {
    return fault(ncclInvalidArgument, "blocking is neither 0 nor 1");
  }
  return ncclSuccess;
}

void add(ncclComm* comm) {
  const std::lock_guard lock(issue_mutex);
  communicators()[reinterpret_cast<std::uint64_t>(comm)] = comm;
}

/// Waits for the communicator's kernels. False: they still run after the time.
bool wait_for_kernels(const ncclComm& comm, std::optional<std::chrono::seconds> longest) {
  const auto begin = std::chrono::steady_clock::now();
  while (comm.kernels > 0 && !simulation::exiting()) {
    if (longest && std::chrono::steady_clock::now() - begin > *longest) return false;
    pause_briefly();
  }
  return true;
}

}  // namespace

extern "C" {

const char* nccl_double_take_faults() {
  thread_local std::string lines;
  lines.clear();
  const std::lock_guard lock(faults_mutex);
  for (const auto& each : std::exchange(faults, {})) lines += each + "\n";
  return lines.c_str();
}
void nccl_double_fail_rank(int rank, int operation, int result) {
  const std::lock_guard lock(issue_mutex);
  failure = {operation, result, rank};
}
void nccl_double_fail(int operation, int result) { nccl_double_fail_rank(-1, operation, result); }
void nccl_double_slow_init(int polls) { slow_init = polls; }
void nccl_double_slow_groups(int polls) { slow_groups = polls; }
void nccl_double_set_version(int number) { version = number == 0 ? default_version : number; }

ncclResult_t ncclGetVersion(int* number) {
  *number = version;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<unsigned> next{0};
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/lockstep-nccl-%d-%u-%08x", ::getpid(), next++,
                std::random_device{}());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *made = nullptr;
  if (const auto result = check_config(config); result != ncclSuccess) return result;
  if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks) {
    return fault(ncclInvalidArgument, "ncclCommInitRankConfig: rank " + std::to_string(rank) +
                                          " of " + std::to_string(ranks));
  }
  if (std::strncmp(id.internal, "/lockstep-nccl-", 15) != 0) {
    return fault(ncclInvalidArgument, "ncclCommInitRankConfig: no id of ncclGetUniqueId");
  }
  if (group_depth > 0) {
    return fault(ncclInvalidUsage, "ncclCommInitRankConfig in a group is not simulated");
  }
  auto* comm = new ncclComm;
  comm->name = id.internal;
  comm->size = ranks;
  comm->rank = rank;
  comm->device = simulation::current_device();
  comm->is_blocking = config == nullptr || config->blocking != 0;
  if (const auto result = enter(*comm); result != ncclSuccess) return result;
  add(comm);
  *made = comm;
  return start(*comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const auto result = check_life(comm, "ncclCommFinalize"); result != ncclSuccess)
    return result;
  comm->is_finalized = true;
  if (!comm->is_blocking) return comm->kernels > 0 ? ncclInProgress : ncclSuccess;
  wait_for_kernels(*comm, {});
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (!is_known(comm) || comm->is_destroyed || comm->is_aborted) {
    return fault(ncclInvalidArgument, "ncclCommDestroy of a communicator that has ended");
  }
  wait_for_kernels(*comm, {});
  comm->is_destroyed = true;
  ++comm->world->ended;
  const auto begin = std::chrono::steady_clock::now();
  while (comm->world->ended < comm->size && !simulation::exiting() &&
         std::chrono::steady_clock::now() - begin < longest_end) {
    pause_briefly();
  }
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (!is_known(comm) || comm->is_destroyed || comm->is_aborted.exchange(true)) {
    return fault(ncclInvalidArgument, "ncclCommAbort of a communicator that has ended");
  }
  ++comm->world->ended;
  if (!wait_for_kernels(*comm, longest_end)) {
    return fault(ncclInternalError, "ncclCommAbort by rank " + std::to_string(comm->rank) +
                                        ": work before a kernel does not end");
  }
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  if (comm == nullptr || !is_known(comm)) {
    return fault(ncclInvalidArgument, "ncclCommGetAsyncError: no communicator");
  }
  if (comm->is_aborted || comm->is_destroyed) {
    return fault(ncclInvalidUsage, "ncclCommGetAsyncError of a communicator that has ended");
  }
  *result = advance_start(*comm);
  if (*result == ncclSuccess && comm->polls > 0) {
    --comm->polls;
    *result = ncclInProgress;
  }
  if (*result == ncclSuccess && comm->is_finalized && comm->kernels > 0) *result = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return issue(
      {Operation::all_reduce, in, out, count, dtype, op, 0, comm, static_cast<Stream*>(stream)});
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, ncclStream_t stream) {
  return issue(
      {Operation::broadcast, in, out, count, dtype, 0, root, comm, static_cast<Stream*>(stream)});
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, ncclStream_t stream) {
  return issue(
      {Operation::all_gather, in, out, count, dtype, 0, 0, comm, static_cast<Stream*>(stream)});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::reduce_scatter, in, out, count, dtype, op, 0, comm,
                static_cast<Stream*>(stream)});
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream) {
  return issue(
      {Operation::reduce, in, out, count, dtype, op, root, comm, static_cast<Stream*>(stream)});
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, ncclStream_t stream) {
  return issue(
      {Operation::send, in, nullptr, count, dtype, 0, peer, comm, static_cast<Stream*>(stream)});
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      ncclStream_t stream) {
  return issue(
      {Operation::recv, nullptr, out, count, dtype, 0, peer, comm, static_cast<Stream*>(stream)});
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return fault(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return ncclSuccess;
  auto calls = std::exchange(group_calls, {});
  const auto result = std::exchange(group_result, ncclSuccess);
  if (result != ncclSuccess) return result;
  if (calls.empty()) return ncclSuccess;
  auto& comm = *calls.front().comm;
  launch(std::move(calls));
  if (comm.is_blocking || slow_groups == 0) return ncclSuccess;
  comm.polls = slow_groups.load();
  return ncclInProgress;
}
}
