// The calls for time and threads. See simulated_calls.cpp.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "tests/simulation/simulated_calls.h"

namespace lockstep::testing {
namespace {

/// The clock's value at the beginning of a world.
constexpr std::int64_t first_second = 1'000'000;

timespec clock_value(Time time) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {.tv_sec = first_second + whole.count(), .tv_nsec = (time - whole).count()};
}

Time duration(const timespec& value) {
  return std::chrono::seconds(value.tv_sec) + Time(value.tv_nsec);
}

Time time_of(const timespec& value) { return duration(value) - std::chrono::seconds(first_second); }

SimulatedThread* thread_of(pthread_t handle) { return reinterpret_cast<SimulatedThread*>(handle); }

/// The first word of a simulated mutex is 1 while it is locked. A mutex that was initialised
/// statically is 0.
bool try_lock(pthread_mutex_t* mutex) {
  auto& locked = mutex->__data.__lock;
  if (locked != 0) return false;
  locked = 1;
  return true;
}

void lock(pthread_mutex_t* mutex) {
  while (!try_lock(mutex)) kernel().scheduler().wait(mutex);
}

void unlock(pthread_mutex_t* mutex) {
  mutex->__data.__lock = 0;
  kernel().scheduler().notify(mutex, false);
}

long futex(const int* word, int operation, int value) {
  if ((operation & FUTEX_CMD_MASK) == FUTEX_WAKE) {
    kernel().scheduler().notify(word, value != 1);
    return 0;
  }
  kernel().enter();
  if (*word == value) kernel().scheduler().wait(word);
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

using namespace lockstep::testing;  // NOLINT: the functions below have C linkage

extern "C" {

SIMULATED(int, clock_gettime, (clockid_t clock, timespec* value), (clock, value)) {
  *value = clock_value(kernel().scheduler().now());
  return 0;
}

SIMULATED_CALL(int, nanosleep, (const timespec* time, timespec* left), (time, left)) {
  const auto sleep = duration(*time);
  if (sleep <= std::chrono::milliseconds(1)) {
    kernel().pause(sleep);
  } else {
    kernel().scheduler().sleep(sleep);
  }
  return 0;
}

SIMULATED_CALL(int, sched_yield, (), ()) {
  kernel().pause(std::chrono::microseconds(1));
  return 0;
}

long __real_syscall(long, ...);
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (auto& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (SimulatedKernel::current() == nullptr) {
    return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
  }
  if (number != SYS_futex) return 0;  // sched_setattr
  return futex(reinterpret_cast<const int*>(arguments[0]), static_cast<int>(arguments[1]),
               static_cast<int>(arguments[2]));
}

SIMULATED(pid_t, getpid, (), ()) { return SimulatedKernel::process().pid(); }

SIMULATED(int, pthread_create,
          (pthread_t * handle, const pthread_attr_t* attributes, void* (*body)(void*),
           void* argument),
          (handle, attributes, body, argument)) {
  auto& thread =
      kernel().scheduler().start(SimulatedKernel::process(), [body, argument] { body(argument); });
  *handle = reinterpret_cast<pthread_t>(&thread);
  return 0;
}

SIMULATED_CALL(int, pthread_join, (pthread_t handle, void** value), (handle, value)) {
  while (!thread_of(handle)->fiber.ended()) kernel().scheduler().wait(thread_of(handle));
  return 0;
}

SIMULATED(int, pthread_detach, (pthread_t handle), (handle)) { return 0; }

SIMULATED(pthread_t, pthread_self, (), ()) {
  return reinterpret_cast<pthread_t>(Scheduler::current());
}

SIMULATED(int, pthread_setname_np, (pthread_t handle, const char* name), (handle, name)) {
  return 0;
}

SIMULATED(int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* old), (how, set, old)) {
  return 0;
}

SIMULATED_CALL(int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex)) {
  lock(mutex);
  return 0;
}

SIMULATED_CALL(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex)) {
  return try_lock(mutex) ? 0 : EBUSY;
}

SIMULATED(int, pthread_mutex_unlock, (pthread_mutex_t * mutex), (mutex)) {
  unlock(mutex);
  return 0;
}

SIMULATED(int, pthread_cond_clockwait,
          (pthread_cond_t * condition, pthread_mutex_t* mutex, clockid_t clock,
           const timespec* until),
          (condition, mutex, clock, until)) {
  unlock(mutex);
  const bool notified = kernel().scheduler().wait(condition, time_of(*until));
  lock(mutex);
  return notified ? 0 : ETIMEDOUT;
}

SIMULATED(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t* mutex),
          (condition, mutex)) {
  unlock(mutex);
  kernel().scheduler().wait(condition);
  lock(mutex);
  return 0;
}

SIMULATED(int, pthread_cond_broadcast, (pthread_cond_t * condition), (condition)) {
  kernel().scheduler().notify(condition);
  return 0;
}

SIMULATED(int, pthread_cond_signal, (pthread_cond_t * condition), (condition)) {
  kernel().scheduler().notify(condition, false);
  return 0;
}

}  // extern "C"
