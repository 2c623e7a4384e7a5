#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/device/simulation/simulation.h"

/// The simulated accelerator below LibTorch: memory, streams, events and the check of their order.
namespace lockstep::simulation {

struct Stream;
struct Event;

/// A range of memory that a task reads or writes.
struct Access {
  const void* begin;
  std::size_t bytes;
  bool writes;
};

/// How counts() counts a task.
enum class Kind { kernel, collective, copy, internal };

/// The current device of this thread.
int current_device();
void set_current_device(int device);

/// Exchanges the capture mode of this thread: 0 global, 2 relaxed.
void exchange_capture_mode(int& mode);

/// Returns a device address, which no thread may access. Throws std::bad_alloc.
void* allocate(int device, std::size_t bytes);
/// Returns the memory at once. The caller orders this after the last use.
void release(void* memory);
bool is_device_memory(const void* memory, int* device = nullptr);
/// Where a task finds the bytes of a device address.
void* shadow(const void* memory);

/// The memory of all devices as another process can map it.
struct ArenaFile {
  int descriptor;  ///< of this process; /proc/PID/fd/DESCRIPTOR in others
  std::size_t bytes;
  const std::byte* shadow;  ///< where tasks find offset 0
};
ArenaFile arena_file();
std::size_t arena_offset(const void* memory);

/// Pinned host memory. The check covers it like device memory.
void add_pinned(void* memory, std::size_t bytes);
void remove_pinned(void* memory);
bool is_pinned(const void* memory);

/// Notes that a stream uses device or pinned memory. Takes any address in it.
void add_user(const void* memory, Stream* stream);
std::vector<Stream*> users_of(const void* memory);

/// Stream 0 is the default stream. A stream starts its thread when it gets its first task.
Stream* stream(int device, int id);
int device_of(const Stream* stream);

/// Runs the task on the stream's thread after all earlier tasks of the stream.
void enqueue(Stream* stream, const std::string& name, Kind kind,
             const std::vector<Access>& accesses, std::function<void()> task);
/// Waits for all tasks of the stream so far. Throws the first exception of a task since the last
/// call. Counts as a host synchronisation.
void synchronize(Stream* stream);
void synchronize_device(int device);

Event* make_event();
void destroy(Event* event);
void record(Event* event, Stream* stream);
void wait(Stream* stream, Event* event);
bool done(Event* event);
void synchronize(Event* event);

/// Runs the task, on a thread of the device's own, once the streams have finished what they have
/// now. It orders no stream after another.
void reclaim(int device, const std::vector<Stream*>& users, const std::string& name,
             const std::vector<Access>& accesses, std::function<void()> task);

/// True once the process exits: a task that waits gives up.
bool exiting();

}  // namespace lockstep::simulation
