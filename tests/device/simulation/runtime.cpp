#include "tests/device/simulation/runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

namespace lockstep::simulation {
namespace {

constexpr std::size_t device_bytes = std::size_t{4} << 30;  // of addresses; pages come when touched
constexpr std::size_t arena_bytes = devices * device_bytes;
constexpr std::size_t alignment = 512;
constexpr std::size_t most_races = 1000;
constexpr int reclaim_stream = -1;

/// How far each stream had come, by the index of the stream.
using Clock = std::vector<std::uint64_t>;

void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

std::uint64_t entry(const Clock& clock, std::size_t index) {
  return index < clock.size() ? clock[index] : 0;
}

/// An access that a later task may have to be ordered after.
struct Touch {
  std::size_t begin, end;  // offsets in the block
  std::size_t stream;
  std::uint64_t when;
  bool writes;
  const std::string* name;
};

struct Block {
  std::size_t bytes;
  std::vector<Touch> touches = {};
  std::vector<Stream*> users = {};  // of add_user()
};
/// Blocks by their first address.
using Blocks = std::map<std::uintptr_t, Block>;

std::uintptr_t address(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

/// The memory of all devices, which is mapped twice. Programs see the mapping without access.
struct Arena {
  int file = -1;
  std::byte* device = nullptr;
  std::byte* shadow = nullptr;
  // Of each device, guarded by State::mutex. Released memory is kept by size, a power of two.
  std::array<std::size_t, devices> used{};
  std::array<std::map<std::size_t, std::vector<std::byte*>>, devices> released;

  Arena() : file(::memfd_create("lockstep-simulation", MFD_CLOEXEC)) {
    if (file < 0 || ::ftruncate(file, arena_bytes) != 0) {
      throw std::runtime_error("simulated device: no shared memory file");
    }
    device = map(PROT_NONE);
    shadow = map(PROT_READ | PROT_WRITE);
  }
  std::byte* map(int protection) const {
    void* at = ::mmap(nullptr, arena_bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) throw std::runtime_error("simulated device: mmap failed");
    return static_cast<std::byte*>(at);
  }
};

struct Counters {
  std::atomic<std::uint64_t> kernels, collectives, copies, host_synchronisations;
};

struct State {
  std::mutex mutex;  // guards all below but the atomics
  Blocks blocks;
  Blocks pinned;
  Clock host;  // what the host has waited for
  std::vector<std::string> races;
  std::set<std::string> names;  // of tasks: touches point to them
  std::vector<Stream*> streams;
  std::map<std::pair<int, int>, Stream*> by_id;
  std::array<Counters, devices> counters{};
  std::array<std::atomic<int>, devices> pauses{};
  std::atomic<int> delay{0};
  std::atomic<bool> exiting{false}, capturing{false}, invalidated{false}, waits_fail{false};
  State();
};

/// Never destroyed, because streams outlive main().
State& state() {
  static State* const one = new State;
  return *one;
}

thread_local int device_of_thread = 0;
thread_local int capture_mode_of_thread = 0;

}  // namespace

struct Stream {
  const int device, id;
  const std::size_t index;
  Clock clock;  // of what was enqueued last; guarded by State::mutex
  std::mutex mutex;
  std::condition_variable changed;
  struct Task {
    std::function<void()> run;
    bool pauses;
    std::fenv_t environment;
  };
  std::deque<Task> queue;
  std::uint64_t pushed = 0, finished = 0;
  bool started = false, busy = false;
  std::exception_ptr error;

  Stream(int of_device, int stream_id, std::size_t stream_index)
      : device(of_device), id(stream_id), index(stream_index) {}

  std::string name() const {
    if (id == reclaim_stream) return "the allocator of device " + std::to_string(device);
    return "stream " + std::to_string(id) + " of device " + std::to_string(device);
  }

  void push(std::function<void()> run, bool pauses = false) {
    Task task{std::move(run), pauses, {}};
    std::fegetenv(&task.environment);  // whether the program flushes denormals
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(task));
    ++pushed;
    if (!std::exchange(started, true)) std::thread([this] { loop(); }).detach();
    changed.notify_all();
  }

  void loop() {
    auto& all = state();
    std::minstd_rand random(static_cast<unsigned>(index) + 1);
    set_current_device(device);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !queue.empty() && !all.exiting; });
      auto task = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      if (task.pauses) sleep(all.pauses[static_cast<std::size_t>(device)]);
      if (const int limit = all.delay; task.pauses && limit > 0) {
        sleep(static_cast<int>(random() % static_cast<unsigned>(limit)));
      }
      std::fesetenv(&task.environment);
      std::exception_ptr caught;
      try {
        task.run();
      } catch (...) {
        caught = std::current_exception();
      }
      task.run = nullptr;
      lock.lock();
      if (caught && !error) error = caught;
      busy = false;
      ++finished;
      changed.notify_all();
    }
  }
  static void sleep(int microseconds) {
    if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
};

namespace {

/// One recording of an event. A later recording does not affect who waits for this one.
struct Recording {
  int device = 0;
  Clock clock;
  std::promise<void> promise;
  std::shared_future<void> done = promise.get_future();

  bool is_done_after(std::chrono::milliseconds time) const {
    return done.wait_for(time) == std::future_status::ready;
  }
  void wait() const {
    while (!state().exiting && !is_done_after(std::chrono::milliseconds(50))) continue;
  }
};

/// Static objects of LibTorch end after this. Tasks that run now finish first, unless they hang.
void stop_streams() {
  auto& all = state();
  all.exiting = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(all.mutex);
    streams = all.streams;
  }
  for (auto* each : streams) {
    std::unique_lock lock(each->mutex);
    each->changed.wait_until(lock, end, [&] { return !each->busy; });
  }
}

State::State() { std::atexit(stop_streams); }

/// Never destroyed, as the state.
Arena& arena() {
  static Arena* const one = new Arena;
  return *one;
}

/// Of device or pinned memory. The caller holds State::mutex.
std::pair<const std::uintptr_t, Block>* find_block(const void* memory) {
  auto& blocks = is_device_memory(memory) ? state().blocks : state().pinned;
  auto found = blocks.upper_bound(address(memory));
  if (found == blocks.begin()) return nullptr;
  --found;
  return address(memory) < found->first + found->second.bytes ? &*found : nullptr;
}

void report(std::string race) {
  if (state().races.size() < most_races) state().races.push_back(std::move(race));
}

/// Compares one access with those before it, and notes it. The caller holds State::mutex.
void check(Stream* stream, const std::string* name, const Access& access) {
  auto& all = state();
  const auto at = address(access.begin);
  auto* found = find_block(access.begin);
  if (found == nullptr && !is_device_memory(access.begin)) return;
  if (found == nullptr || found->first + found->second.bytes < at + access.bytes) {
    report(*name + " on " + stream->name() + " touches memory that is not allocated");
    return;
  }
  const auto begin = at - found->first;
  const auto end = begin + access.bytes;
  auto& touches = found->second.touches;
  std::erase_if(touches, [&](const Touch& old) {
    if (old.end <= begin || old.begin >= end) return false;
    const bool ordered = old.when <= entry(stream->clock, old.stream);
    if (!ordered && (old.writes || access.writes)) {
      report("race: " + *name + " on " + stream->name() + (access.writes ? " writes" : " reads") +
             " memory that " + *old.name + " on " + all.streams[old.stream]->name() +
             (old.writes ? " writes" : " reads") + ", and no event orders them");
    }
    // An access that is ordered after this one is ordered after the old one too.
    const bool covered = old.begin >= begin && old.end <= end;
    const bool as_strong = access.writes || !old.writes;
    return ordered && covered && as_strong && (access.writes || old.stream == stream->index);
  });
  if (touches.size() > 64) {
    std::erase_if(touches,
                  [&](const Touch& old) { return old.when <= entry(all.host, old.stream); });
  }
  touches.push_back(
      {begin, end, stream->index, entry(stream->clock, stream->index), access.writes, name});
}

/// The order of the clocks is that of the queues, as both change under State::mutex.
void enqueue_locked(Stream* stream, const std::string& name, const std::vector<Access>& accesses,
                    std::function<void()> task, bool pauses) {
  auto& all = state();
  join(stream->clock, all.host);
  if (stream->clock.size() <= stream->index) stream->clock.resize(stream->index + 1);
  ++stream->clock[stream->index];
  const auto* interned = &*all.names.insert(name).first;
  for (const auto& access : accesses) {
    if (access.bytes > 0) check(stream, interned, access);
  }
  stream->push(std::move(task), pauses);
}

Stream* stream_locked(int device, int id) {
  auto& all = state();
  auto& found = all.by_id[{device, id}];
  if (found == nullptr) {
    found = new Stream(device, id, all.streams.size());
    all.streams.push_back(found);
  }
  return found;
}

Counters& counters(int device) { return state().counters[static_cast<std::size_t>(device)]; }

void learn(const Clock& clock) {
  const std::lock_guard lock(state().mutex);
  join(state().host, clock);
}

void wait_for(Stream* stream) {
  Clock seen;
  std::uint64_t target = 0;
  {
    const std::lock_guard all(state().mutex);
    const std::lock_guard lock(stream->mutex);
    seen = stream->clock;
    target = stream->pushed;
  }
  std::exception_ptr error;
  {
    std::unique_lock lock(stream->mutex);
    stream->changed.wait(lock, [&] { return stream->finished >= target; });
    error = std::exchange(stream->error, nullptr);
  }
  learn(seen);
  if (error) std::rethrow_exception(error);
}

}  // namespace

struct Event {
  std::shared_ptr<Recording> last;
};

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }

void* allocate(int device, std::size_t bytes) {
  bytes = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  const auto taken = std::bit_ceil(bytes);
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  const auto index = static_cast<std::size_t>(device);
  auto& used = arena().used.at(index);
  auto& released = arena().released.at(index)[taken];
  if (released.empty() && used + taken > device_bytes) throw std::bad_alloc();
  std::byte* at = arena().device + index * device_bytes + used;
  if (released.empty()) {
    used += taken;
  } else {
    at = released.back();
    released.pop_back();
  }
  all.blocks[address(at)] = Block{bytes};
  return at;
}

void release(void* block) {
  int device = 0;
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(address(block));
  if (!is_device_memory(block, &device) || found == all.blocks.end()) {
    report("memory is released that is not allocated");
    return;
  }
  const auto taken = std::bit_ceil(found->second.bytes);
  auto& released = arena().released.at(static_cast<std::size_t>(device))[taken];
  released.push_back(static_cast<std::byte*>(block));
  all.blocks.erase(found);
}

bool is_device_memory(const void* memory, int* device) {
  const auto offset = address(memory) - address(arena().device);  // large for an address before it
  if (offset >= arena_bytes) return false;
  if (device != nullptr) *device = static_cast<int>(offset / device_bytes);
  return true;
}

std::size_t arena_offset(const void* memory) {
  if (!is_device_memory(memory)) {
    throw std::invalid_argument("simulated device: an address of the host");
  }
  return address(memory) - address(arena().device);
}

void* shadow(const void* memory) { return arena().shadow + arena_offset(memory); }

ArenaFile arena_file() { return {arena().file, arena_bytes, arena().shadow}; }

void add_pinned(void* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().pinned[address(memory)] = Block{bytes};
}
void remove_pinned(void* memory) {
  const std::lock_guard lock(state().mutex);
  state().pinned.erase(address(memory));
}
bool is_pinned(const void* memory) {
  const std::lock_guard lock(state().mutex);
  return !is_device_memory(memory) && find_block(memory) != nullptr;
}

void add_user(const void* memory, Stream* stream) {
  const std::lock_guard lock(state().mutex);
  auto* found = find_block(memory);
  if (found == nullptr) return;
  auto& users = found->second.users;
  if (std::ranges::find(users, stream) == users.end()) users.push_back(stream);
}
std::vector<Stream*> users_of(const void* memory) {
  const std::lock_guard lock(state().mutex);
  return find_block(memory)->second.users;
}

Stream* stream(int device, int id) {
  const std::lock_guard lock(state().mutex);
  return stream_locked(device, id);
}
int device_of(const Stream* stream) { return stream->device; }

void enqueue(Stream* stream, const std::string& name, Kind kind,
             const std::vector<Access>& accesses, std::function<void()> task) {
  auto& count = counters(stream->device);
  if (kind == Kind::kernel) ++count.kernels;
  if (kind == Kind::collective) ++count.collectives;
  if (kind == Kind::copy) ++count.copies;
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  enqueue_locked(stream, name, accesses, std::move(task), kind != Kind::internal);
}

void synchronize(Stream* stream) {
  ++counters(stream->device).host_synchronisations;
  wait_for(stream);
}

void synchronize_device(int device) {
  ++counters(device).host_synchronisations;
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(state().mutex);
    streams = state().streams;
  }
  for (auto* each : streams) {
    if (each->device == device && each->id != reclaim_stream) wait_for(each);
  }
}

void synchronize_all() {
  for (int device = 0; device < devices; ++device) synchronize_device(device);
}

void reset() {
  for (int device = 0; device < devices; ++device) {
    for (bool failed = true; failed;) {
      try {
        synchronize_device(device);
        failed = false;
      } catch (const std::exception&) {
        // Of a stream, which no longer has it.
      }
    }
  }
  take_races();
}

Event* make_event() { return new Event; }
void destroy(Event* event) { delete event; }

void record(Event* event, Stream* stream) {
  auto recording = std::make_shared<Recording>();
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  join(stream->clock, all.host);
  recording->clock = stream->clock;
  recording->device = stream->device;
  event->last = recording;
  stream->push([recording] { recording->promise.set_value(); });
}

void wait(Stream* stream, Event* event) {
  if (state().waits_fail) throw std::runtime_error("simulated device: unspecified launch failure");
  const auto recording = event->last;
  if (!recording) return;
  const std::lock_guard lock(state().mutex);
  join(stream->clock, recording->clock);
  stream->push([recording] { recording->wait(); });
}

bool done(Event* event) {
  const auto recording = event->last;
  if (!recording) return true;
  auto& all = state();
  if (all.capturing && capture_mode_of_thread == 0) {
    all.invalidated = true;
    throw std::runtime_error("simulated device: operation not permitted when stream is capturing");
  }
  if (recording->device != device_of_thread) {
    const std::lock_guard lock(all.mutex);
    report("an event of device " + std::to_string(recording->device) +
           " is queried in a thread with device " + std::to_string(device_of_thread));
  }
  if (!recording->is_done_after({})) return false;
  learn(recording->clock);
  return true;
}

void synchronize(Event* event) {
  const auto recording = event->last;
  if (!recording) return;
  ++counters(device_of_thread).host_synchronisations;
  recording->wait();
  learn(recording->clock);
}

void reclaim(int device, const std::vector<Stream*>& users, const std::string& name,
             const std::vector<Access>& accesses, std::function<void()> task) {
  const std::lock_guard lock(state().mutex);
  auto* own = stream_locked(device, reclaim_stream);
  for (auto* user : users) {
    auto recording = std::make_shared<Recording>();
    join(user->clock, state().host);
    join(own->clock, user->clock);
    user->push([recording] { recording->promise.set_value(); });
    own->push([recording] { recording->wait(); });
  }
  enqueue_locked(own, name, accesses, std::move(task), false);
}

bool exiting() { return state().exiting; }

std::vector<std::string> take_races() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().races, {});
}

void exchange_capture_mode(int& mode) { std::swap(mode, capture_mode_of_thread); }
void begin_capture() {
  state().invalidated = false;
  state().capturing = true;
}
bool end_capture() {
  state().capturing = false;
  return !state().invalidated;
}

void fail_waits(bool fails) { state().waits_fail = fails; }

void set_delay(int microseconds) { state().delay = microseconds; }
void slow_down(int device, int microseconds) {
  state().pauses[static_cast<std::size_t>(device)] = microseconds;
}

Counts counts(int device) {
  const auto& of = counters(device);
  return {of.kernels, of.collectives, of.copies, of.host_synchronisations};
}

Counts operator-(const Counts& after, const Counts& before) {
  return {after.kernels - before.kernels, after.collectives - before.collectives,
          after.copies - before.copies, after.host_synchronisations - before.host_synchronisations};
}

}  // namespace lockstep::simulation
