// The calls for time and threads. See simulated_calls.cpp.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>

#include "tests/simulation/simulated_kernel.h"

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

void lock(SimulatedKernel& kernel, pthread_mutex_t* mutex) {
  while (!try_lock(mutex)) kernel.scheduler().wait(mutex);
}

void unlock(SimulatedKernel& kernel, pthread_mutex_t* mutex) {
  mutex->__data.__lock = 0;
  kernel.scheduler().notify(mutex, false);
}

long futex(SimulatedKernel& kernel, const int* word, int operation, int value) {
  if ((operation & FUTEX_CMD_MASK) == FUTEX_WAKE) {
    kernel.scheduler().notify(word, value != 1);
    return 0;
  }
  kernel.enter();
  if (*word == value) kernel.scheduler().wait(word);
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

using namespace lockstep::testing;  // NOLINT: the functions below have C linkage

extern "C" {

int __real_clock_gettime(clockid_t, timespec*);
int __wrap_clock_gettime(clockid_t clock, timespec* value) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_clock_gettime(clock, value);
  *value = clock_value(kernel->scheduler().now());
  return 0;
}

int __real_nanosleep(const timespec*, timespec*);
int __wrap_nanosleep(const timespec* time, timespec* left) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_nanosleep(time, left);
  const auto sleep = duration(*time);
  if (sleep <= std::chrono::milliseconds(1)) {
    kernel->pause(sleep);
  } else {
    kernel->scheduler().sleep(sleep);
  }
  return 0;
}

int __real_sched_yield();
int __wrap_sched_yield() {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_sched_yield();
  kernel->pause(std::chrono::microseconds(1));
  return 0;
}

long __real_syscall(long, ...);
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (auto& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) {
    return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
  }
  if (number != SYS_futex) return 0;  // sched_setattr
  return futex(*kernel, reinterpret_cast<const int*>(arguments[0]), static_cast<int>(arguments[1]),
               static_cast<int>(arguments[2]));
}

pid_t __real_getpid();
pid_t __wrap_getpid() {
  return SimulatedKernel::current() == nullptr ? __real_getpid() : SimulatedKernel::process().pid();
}

int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t* handle, const pthread_attr_t* attributes, void* (*body)(void*),
                          void* argument) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_pthread_create(handle, attributes, body, argument);
  auto& thread =
      kernel->scheduler().start(SimulatedKernel::process(), [body, argument] { body(argument); });
  *handle = reinterpret_cast<pthread_t>(&thread);
  return 0;
}

int __real_pthread_join(pthread_t, void**);
int __wrap_pthread_join(pthread_t handle, void** value) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_pthread_join(handle, value);
  while (!thread_of(handle)->fiber.ended()) kernel->scheduler().wait(thread_of(handle));
  return 0;
}

int __real_pthread_detach(pthread_t);
int __wrap_pthread_detach(pthread_t handle) {
  return SimulatedKernel::current() == nullptr ? __real_pthread_detach(handle) : 0;
}

pthread_t __real_pthread_self();
pthread_t __wrap_pthread_self() {
  return SimulatedKernel::current() == nullptr ? __real_pthread_self()
                                               : reinterpret_cast<pthread_t>(Scheduler::current());
}

int __real_pthread_setname_np(pthread_t, const char*);
int __wrap_pthread_setname_np(pthread_t handle, const char* name) {
  return SimulatedKernel::current() == nullptr ? __real_pthread_setname_np(handle, name) : 0;
}

int __real_pthread_sigmask(int, const sigset_t*, sigset_t*);
int __wrap_pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  return SimulatedKernel::current() == nullptr ? __real_pthread_sigmask(how, set, old) : 0;
}

int __real_pthread_mutex_lock(pthread_mutex_t*);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_pthread_mutex_lock(mutex);
  lock(*kernel, mutex);
  return 0;
}

int __real_pthread_mutex_trylock(pthread_mutex_t*);
int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  if (SimulatedKernel::entered() == nullptr) return __real_pthread_mutex_trylock(mutex);
  return try_lock(mutex) ? 0 : EBUSY;
}

int __real_pthread_mutex_unlock(pthread_mutex_t*);
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_pthread_mutex_unlock(mutex);
  unlock(*kernel, mutex);
  return 0;
}

int __real_pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_pthread_cond_clockwait(condition, mutex, clock, until);
  unlock(*kernel, mutex);
  const bool notified = kernel->scheduler().wait(condition, time_of(*until));
  lock(*kernel, mutex);
  return notified ? 0 : ETIMEDOUT;
}

int __real_pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*);
int __wrap_pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_pthread_cond_wait(condition, mutex);
  unlock(*kernel, mutex);
  kernel->scheduler().wait(condition);
  lock(*kernel, mutex);
  return 0;
}

int __real_pthread_cond_broadcast(pthread_cond_t*);
int __wrap_pthread_cond_broadcast(pthread_cond_t* condition) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_pthread_cond_broadcast(condition);
  kernel->scheduler().notify(condition);
  return 0;
}

int __real_pthread_cond_signal(pthread_cond_t*);
int __wrap_pthread_cond_signal(pthread_cond_t* condition) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_pthread_cond_signal(condition);
  kernel->scheduler().notify(condition, false);
  return 0;
}

}  // extern "C"
