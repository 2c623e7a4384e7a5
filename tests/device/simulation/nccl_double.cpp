#include "tests/device/simulation/nccl_double.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/device/simulation/nccl_api.h"
#include "tests/device/simulation/nccl_world.h"
#include "tests/device/simulation/runtime.h"

/// A rank's communicator. It is never deleted, so that a call after its end is a fault and no
/// crash.
struct ncclComm {
  std::shared_ptr<lockstep::simulation::nccl::World> world;
  int size = 0, rank = 0, device = 0;

  std::atomic<bool> is_ready{false}, is_finalized{false}, is_destroyed{false}, is_aborted{false};
  std::atomic<int> error{ncclSuccess};
  std::atomic<int> polls{0};    // for which the last call is in progress
  std::atomic<int> kernels{0};  // launched and not at their end
  std::mutex start_mutex;       // of start()

  // Operations that kernels have begun. All are on one stream.
  lockstep::simulation::Stream* stream = nullptr;
  std::uint64_t collectives = 0;
  std::array<std::uint64_t, lockstep::simulation::nccl::most_ranks> sends{}, receives{};

  std::string name() const { return "rank " + std::to_string(rank); }
  bool has_ended() const { return is_destroyed || is_aborted; }
};

namespace lockstep::simulation::nccl {
namespace {

constexpr auto longest_end = std::chrono::seconds(10);  // of ncclCommAbort and ncclCommDestroy

std::mutex faults_mutex;
std::vector<std::string> faults;
thread_local std::string last_error;

std::vector<std::string> take_faults() {
  const std::lock_guard lock(faults_mutex);
  return std::exchange(faults, {});
}
NcclDouble settings{.take_faults = take_faults};

/// NCCL 2.30 lets ranks share a GPU on request.
bool may_share_devices() {
  const char* const text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return settings.version >= 23000 && text != nullptr && std::string_view(text) == "1";
}

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

/// Waits until a condition holds, at most longest_end. Returns whether it holds.
bool wait_until(const std::function<bool()>& condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition() && !exiting()) {
    if (std::chrono::steady_clock::now() - begin > longest_end) return false;
    pause_briefly();
  }
  return true;
}

/// One operation of a rank.
struct Call {
  Arguments arguments;
  const void* in;
  void* out;
  ncclComm* comm;
  bool hangs = false;
  // Progress of the kernel.
  std::uint64_t number = 0;  // of its kind and other rank, from 1
  int step = 0;
  bool is_done = false;
  std::vector<std::byte> result = {};

  Operation operation() const { return arguments.operation; }
  std::size_t peer() const { return static_cast<std::size_t>(arguments.root); }
  bool is_root() const { return comm->rank == arguments.root; }
  std::size_t bytes() const { return arguments.count * width(arguments.dtype); }
  std::size_t bytes_of_ranks() const { return bytes() * static_cast<std::size_t>(comm->size); }
  std::size_t in_bytes() const {
    return operation() == Operation::reduce_scatter ? bytes_of_ranks() : bytes();
  }
  std::size_t out_bytes() const {
    return operation() == Operation::all_gather ? bytes_of_ranks() : bytes();
  }
  bool reads() const {
    return operation() != Operation::recv && (operation() != Operation::broadcast || is_root());
  }
  bool writes() const {
    return operation() != Operation::send && (operation() != Operation::reduce || is_root());
  }
};

const char* name_of(Operation operation) {
  constexpr const char* names[] = {"AllReduce", "Broadcast", "ReduceScatter", "AllGather",
                                   "Reduce",    "Send",      "Recv"};
  return names[static_cast<int>(operation)];
}

std::string text(std::size_t rank, const Arguments& a) {
  return "rank " + std::to_string(rank) + ": " + name_of(a.operation) + " of " +
         std::to_string(a.count) + " elements of dtype " + std::to_string(a.dtype) + ", op " +
         std::to_string(a.op) + ", root or other rank " + std::to_string(a.root);
}

// Kernels. Each advances what it can and returns true if that was anything.

/// Announces the collective, computes when all have announced, writes when all have read.
bool advance_collective(Call& c) {
  auto& comm = *c.comm;
  auto& world = *comm.world;
  const auto size = static_cast<std::size_t>(comm.size);
  auto& own = world.slots[comm.rank];
  if (c.step == 0) {
    c.number = ++comm.collectives;
    own.announcement = {c.arguments, c.reads() && c.bytes() > 0 ? arena_offset(c.in) : 0};
    own.announced = c.number;
    c.step = 1;
    return true;
  }
  if (c.step == 1) {
    std::vector<const Announcement*> ranks;
    std::vector<const std::byte*> memory;
    for (std::size_t r = 0; r < size; ++r) {
      if (world.slots[r].announced < c.number) {
        if (has_ended(world.members[r])) comm.error = ncclRemoteError;
        return false;
      }
      ranks.push_back(&world.slots[r].announcement);
      memory.push_back(memory_of(world.members[r]));
      if (memory.back() == nullptr) return false;  // its process is gone
    }
    const auto different = std::ranges::find_if(
        ranks, [&](const auto* each) { return each->arguments != ranks[0]->arguments; });
    if (different != ranks.end()) {
      const auto rank = static_cast<std::size_t>(different - ranks.begin());
      fault(ncclSuccess, "mismatch: " + text(0, ranks[0]->arguments) + "; " +
                             text(rank, (*different)->arguments));
      c.result.assign(c.out_bytes(), std::byte{0xff});
    } else {
      c.result = compute(ranks, memory, comm.rank);
    }
    own.read = c.number;
    c.step = 2;
    return true;
  }
  for (std::size_t r = 0; r < size; ++r) {
    if (world.slots[r].read < c.number) return false;
  }
  if (c.writes() && !c.result.empty()) {
    std::memcpy(shadow(c.out), c.result.data(), c.result.size());
  }
  return c.is_done = true;
}

bool advance_send(Call& c) {
  auto& comm = *c.comm;
  auto& message = comm.world->messages[comm.rank][c.peer()];
  if (c.step == 0) {
    if (message.taken < comm.sends[c.peer()]) return false;  // another message of this group
    c.number = ++comm.sends[c.peer()];
    message.arguments = c.arguments;
    message.in = c.bytes() > 0 ? arena_offset(c.in) : 0;
    message.sent = c.number;
    c.step = 1;
    return true;
  }
  return c.is_done = message.taken >= c.number;
}

bool advance_recv(Call& c) {
  auto& comm = *c.comm;
  auto& message = comm.world->messages[c.peer()][comm.rank];
  if (c.number == 0) c.number = ++comm.receives[c.peer()];
  if (message.sent < c.number) return false;
  const auto* memory = memory_of(comm.world->members[c.peer()]);
  if (memory == nullptr) return false;
  const auto& sent = message.arguments;
  if (sent.count != c.arguments.count || sent.dtype != c.arguments.dtype) {
    fault(ncclSuccess, "mismatch: " + text(c.peer(), sent) + "; " +
                           text(static_cast<std::size_t>(comm.rank), c.arguments));
    if (c.bytes() > 0) std::memset(shadow(c.out), 0xff, c.bytes());
  } else if (c.bytes() > 0) {
    std::memcpy(shadow(c.out), memory + message.in, c.bytes());
  }
  message.taken = c.number;
  return c.is_done = true;
}

bool advance(Call& c) {
  if (c.is_done) return false;
  if (c.comm->is_aborted) return c.is_done = true;
  if (c.hangs || c.comm->error != ncclSuccess) return false;
  if (c.operation() == Operation::send) return advance_send(c);
  if (c.operation() == Operation::recv) return advance_recv(c);
  return advance_collective(c);
}

/// The calls of a group make progress together.
void run_kernel(std::vector<Call>& calls) {
  while (!exiting()) {
    bool progress = false, done = true;
    for (auto& c : calls) progress = advance(c) || progress;
    for (const auto& c : calls) done = done && c.is_done;
    if (done) break;
    if (!progress) pause_briefly();
  }
  --calls[0].comm->kernels;
}

// Issuing.

/// Whether the failure that a test asked for is this operation.
bool is_failing(const ncclComm& comm) {
  return comm.rank == 1 && settings.failing_operation > 0 && --settings.failing_operation == 0;
}

/// Puts the calls of a group on their stream, as one kernel.
void launch(std::vector<Call> calls) {
  auto& comm = *calls[0].comm;
  std::vector<Access> accesses;
  std::string name = "nccl";
  for (auto& c : calls) {
    if (is_failing(comm)) {
      c.hangs = true;
      comm.error = ncclRemoteError;
    }
    if (c.reads()) accesses.push_back({c.in, c.in_bytes(), false});
    if (c.writes()) accesses.push_back({c.out, c.out_bytes(), true});
    name += name_of(c.operation());
  }
  ++comm.kernels;
  const auto held = std::make_shared<std::vector<Call>>(std::move(calls));
  enqueue(comm.stream, name, Kind::collective, accesses, [held] { run_kernel(*held); });
}

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;
thread_local ncclResult_t group_result = ncclSuccess;

/// Whether buffers overlap otherwise than in place: a rank's part of the larger one is the smaller
/// one.
bool overlap(const Call& c) {
  const auto* in = static_cast<const std::byte*>(c.in);
  const auto* out = static_cast<const std::byte*>(c.out);
  if (!c.reads() || !c.writes() || in >= out + c.out_bytes() || out >= in + c.in_bytes()) {
    return false;
  }
  const auto part = static_cast<std::size_t>(c.comm->rank) * c.bytes();
  if (c.operation() == Operation::all_gather) return in != out + part;
  if (c.operation() == Operation::reduce_scatter) return out != in + part;
  return in != out;
}

bool is_of_device(const void* memory, int expected) {
  int device = -1;
  return is_device_memory(memory, &device) && device == expected;
}

/// Checks that the call may be made now. running: only between the start and ncclCommFinalize.
ncclResult_t check_life(const ncclComm* comm, const std::string& call, bool running) {
  if (comm == nullptr) return fault(ncclInvalidArgument, call + ": no communicator");
  const auto who = call + " by " + comm->name();
  if (comm->has_ended()) return fault(ncclInvalidUsage, who + " after the communicator's end");
  if (running && comm->is_finalized)
    return fault(ncclInvalidUsage, who + " after ncclCommFinalize");
  if (running && !comm->is_ready) {
    return fault(ncclInvalidUsage, who + " before the communicator's start has ended");
  }
  return ncclSuccess;
}

/// What is wrong with the arguments of a call, or an empty text.
std::string mistake(const Call& c) {
  const auto& comm = *c.comm;
  const auto& a = c.arguments;
  const bool is_message = a.operation == Operation::send || a.operation == Operation::recv;
  if (width(a.dtype) == 0) return "no such dtype";
  if (a.root < 0 || a.root >= comm.size) return "no such rank";
  if (a.op < 0 || a.op >= ncclNumOps) return "no such operator";
  if (device_of(comm.stream) != comm.device) return "a stream of another device";
  if (group_depth == 0) return "a call outside a group is not simulated";
  if (!group_calls.empty() && (!is_message || group_calls[0].comm != c.comm)) {
    return "several collectives or communicators in a group are not simulated";
  }
  if (a.count == 0) return "";
  if (c.reads() && !is_of_device(c.in, comm.device)) return "a source that is not of the device";
  if (c.writes() && !is_of_device(c.out, comm.device)) {
    return "a destination that is not of the device";
  }
  return overlap(c) ? "buffers overlap, and are not in place" : "";
}

ncclResult_t check(const Call& c, Stream* stream) {
  const auto life = check_life(c.comm, name_of(c.operation()), true);
  if (life != ncclSuccess) return life;
  auto& comm = *c.comm;
  if (comm.error != ncclSuccess) return static_cast<ncclResult_t>(comm.error.load());
  if (stream == nullptr) stream = simulation::stream(comm.device, 0);
  if (comm.stream == nullptr) comm.stream = stream;
  const auto what = comm.stream == stream ? mistake(c) : "several streams are not simulated";
  if (what.empty()) return ncclSuccess;
  return fault(ncclInvalidArgument,
               text(static_cast<std::size_t>(comm.rank), c.arguments) + ": " + what);
}

ncclResult_t issue(const Arguments& arguments, const void* in, void* out, ncclComm* comm,
                   ncclStream_t stream) {
  Call c{arguments, in, out, comm};
  const auto result = check(c, static_cast<Stream*>(stream));
  if (result == ncclSuccess) {
    group_calls.push_back(std::move(c));
  } else if (group_result == ncclSuccess) {
    group_result = result;
  }
  return result;
}

/// Advances the start of a communicator. ncclInProgress: others have not come yet.
ncclResult_t start(ncclComm& comm) {
  const std::lock_guard lock(comm.start_mutex);
  auto& world = *comm.world;
  if (!comm.is_ready && comm.error == ncclSuccess) {
    if (world.joined < comm.size) return ncclInProgress;
    close_descriptor(world);
    for (int a = 0; a < comm.size; ++a) {
      for (int b = 0; b < a && !may_share_devices(); ++b) {
        if (world.members[a].device != world.members[b].device) continue;
        if (world.members[a].host != world.members[b].host) continue;
        last_error = "Duplicate GPU detected: rank " + std::to_string(b) + " and rank " +
                     std::to_string(a) + " both on device " +
                     std::to_string(world.members[a].device);
        comm.error = ncclInvalidUsage;
      }
    }
  }
  return static_cast<ncclResult_t>(comm.error.load());
}

}  // namespace

extern "C" {

NcclDouble* nccl_double() { return &settings; }

ncclResult_t ncclGetVersion(int* number) {
  *number = settings.version;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "an error of the double of NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::snprintf(id->internal, sizeof id->internal, "%s", make_world().c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *made = nullptr;
  if (config == nullptr || config->magic != nccl_magic || config->size < sizeof(ncclConfig_t) ||
      config->blocking != 0) {
    return fault(ncclInvalidArgument, "ncclCommInitRankConfig: no configuration without blocking");
  }
  if (ranks > most_ranks || rank < 0 || rank >= ranks || group_depth > 0) {
    return fault(ncclInvalidUsage, "ncclCommInitRankConfig in a group, or of a wrong rank");
  }
  auto* comm = new ncclComm;
  comm->world = open_world(id.internal);
  comm->size = ranks;
  comm->rank = rank;
  comm->device = simulation::current_device();
  comm->polls = settings.slow_init.load();
  // NCCL, too, takes the host from this variable.
  const char* const host = std::getenv("NCCL_HOSTID");
  comm->world->members[rank] = {::getpid(), comm->device, arena_file().descriptor,
                                std::hash<std::string_view>()(host != nullptr ? host : "")};
  ++comm->world->joined;
  *made = comm;
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto result = check_life(comm, "ncclCommFinalize", true);
  if (result != ncclSuccess) return result;
  comm->is_finalized = true;
  return comm->kernels > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const auto result = check_life(comm, "ncclCommDestroy", false);
  if (result != ncclSuccess) return result;
  if (!comm->is_finalized || comm->kernels > 0) {
    return fault(ncclInvalidUsage, "ncclCommDestroy by " + comm->name() + " with kernels");
  }
  comm->is_destroyed = true;
  ++comm->world->ended;
  wait_until([&] { return comm->world->ended >= comm->size; });
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto result = check_life(comm, "ncclCommAbort", false);
  if (result != ncclSuccess) return result;
  comm->is_aborted = true;
  ++comm->world->ended;
  if (!wait_until([&] { return comm->kernels <= 0; })) {
    return fault(ncclInternalError,
                 "ncclCommAbort by " + comm->name() + ": work before a kernel does not end");
  }
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const auto life = check_life(comm, "ncclCommGetAsyncError", false);
  if (life != ncclSuccess) return life;
  *result = start(*comm);
  if (*result != ncclSuccess) return ncclSuccess;
  if (comm->polls > 0) {
    --comm->polls;
    *result = ncclInProgress;
    return ncclSuccess;
  }
  comm->is_ready = true;
  if (comm->is_finalized && comm->kernels > 0) *result = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::all_reduce, count, dtype, op, 0}, in, out, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::broadcast, count, dtype, 0, root}, in, out, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::all_gather, count, dtype, 0, 0}, in, out, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::reduce_scatter, count, dtype, op, 0}, in, out, comm, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::reduce, count, dtype, op, root}, in, out, comm, stream);
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, ncclStream_t stream) {
  return issue({Operation::send, count, dtype, 0, peer}, in, nullptr, comm, stream);
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      ncclStream_t stream) {
  return issue({Operation::recv, count, dtype, 0, peer}, nullptr, out, comm, stream);
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
  if (result != ncclSuccess || calls.empty()) return result;
  auto& comm = *calls.front().comm;
  launch(std::move(calls));
  comm.polls = settings.slow_groups.load();
  return comm.polls > 0 ? ncclInProgress : ncclSuccess;
}
}
}  // namespace lockstep::simulation::nccl
