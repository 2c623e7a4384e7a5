// The calls for files and the network. The linker replaces each NAME of the C library in the
// shipped code by __wrap_NAME, and __real_NAME is the C library's.
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/simulated_files.h"
#include "tests/simulation/simulated_kernel.h"

namespace lockstep::testing {
namespace {

/// Converts a result of the kernel to that of the C library.
long result(long value) {
  if (value >= 0) return value;
  errno = static_cast<int>(-value);
  return -1;
}

template <class File>
std::shared_ptr<File> file(int descriptor) {
  return std::dynamic_pointer_cast<File>(SimulatedKernel::process().file(descriptor));
}

sockaddr_in address_of(const sockaddr* address) {
  sockaddr_in copy{};
  std::memcpy(&copy, address, sizeof copy);
  return copy;
}

long give_address(const sockaddr_in& address, sockaddr* to, socklen_t* length) {
  std::memcpy(to, &address, std::min<std::size_t>(sizeof address, *length));
  *length = sizeof address;
  return 0;
}

/// The reply to getifaddrs(): a loopback interface and one to the other hosts.
struct Interfaces {
  std::array<ifaddrs, 2> entries{};
  std::array<sockaddr_in, 2> addresses{};
  std::array<char, 3> loopback{"lo"};
  std::array<char, 5> ethernet{"eth0"};

  explicit Interfaces(int host) {
    entries[0].ifa_name = loopback.data();
    entries[0].ifa_flags = IFF_UP | IFF_LOOPBACK;
    entries[0].ifa_next = &entries[1];
    addresses[0].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    entries[1].ifa_name = ethernet.data();
    entries[1].ifa_flags = IFF_UP;
    addresses[1].sin_addr.s_addr = htonl(0x0a000001U + static_cast<unsigned>(host));
    for (std::size_t i = 0; i < 2; ++i) {
      addresses[i].sin_family = AF_INET;
      entries[i].ifa_addr = reinterpret_cast<sockaddr*>(&addresses[i]);
    }
  }
};

/// The limit of poll() and epoll_wait().
Time limit(int timeout_ms) {
  return timeout_ms < 0 ? forever : Time(std::chrono::milliseconds(timeout_ms));
}

/// Waits until found() is not 0 or the time limit is over.
template <class Found>
int wait_until(SimulatedKernel& kernel, Time limit, const Found& found) {
  const auto until = limit == forever ? forever : kernel.scheduler().now() + limit;
  for (;;) {
    if (const int count = found()) return count;
    if (kernel.scheduler().now() >= until || !kernel.wait_for_files(until)) return found();
  }
}

int await_events(SimulatedKernel& kernel, int epoll, epoll_event* events, int most, Time limit) {
  const auto open = file<SimulatedEpoll>(epoll);
  return wait_until(kernel, limit, [&] {
    std::vector<epoll_event> ready;
    for (const auto& [fd, entry] : open->entries) {
      const auto watched = entry.file.lock();
      if (watched == nullptr) continue;
      const auto reported =
          static_cast<std::uint32_t>(watched->ready()) & (entry.event.events | EPOLLERR | EPOLLHUP);
      if (reported == 0) continue;
      ready.push_back(entry.event);
      ready.back().events = reported;
    }
    // The kernel promises no order.
    for (std::size_t i = ready.size(); i > 1; --i) {
      std::swap(ready[i - 1], ready[kernel.random().bits() % i]);
    }
    const auto count = std::min(ready.size(), static_cast<std::size_t>(most));
    std::copy_n(ready.begin(), count, events);
    return static_cast<int>(count);
  });
}

}  // namespace
}  // namespace lockstep::testing

using namespace lockstep::testing;  // NOLINT: the functions below have C linkage

extern "C" {

int __real_socket(int, int, int);
int __wrap_socket(int domain, int type, int protocol) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_socket(domain, type, protocol);
  if (domain == AF_INET6) return static_cast<int>(result(-EAFNOSUPPORT));
  auto& process = SimulatedKernel::process();
  process.count_socket();
  return process.open(std::make_shared<SimulatedConnection>(kernel->network(), process));
}

int __real_bind(int, const sockaddr*, socklen_t);
int __wrap_bind(int fd, const sockaddr* address, socklen_t length) {
  if (SimulatedKernel::entered() == nullptr) return __real_bind(fd, address, length);
  file<SimulatedConnection>(fd)->bind(address_of(address));
  return 0;
}

int __real_listen(int, int);
int __wrap_listen(int fd, int backlog) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_listen(fd, backlog);
  auto& process = SimulatedKernel::process();
  const auto listener = std::make_shared<SimulatedListener>(kernel->network(), process);
  listener->address = file<SimulatedConnection>(fd)->local();
  listener->address.sin_port =
      htons(kernel->network().bind(process.host(), ntohs(listener->address.sin_port), listener));
  listener->listen();
  process.replace(fd, listener);
  return 0;
}

int __real_connect(int, const sockaddr*, socklen_t);
int __wrap_connect(int fd, const sockaddr* address, socklen_t length) {
  if (SimulatedKernel::entered() == nullptr) return __real_connect(fd, address, length);
  return static_cast<int>(result(file<SimulatedConnection>(fd)->connect(address_of(address))));
}

int __real_accept4(int, sockaddr*, socklen_t*, int);
int __wrap_accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  if (SimulatedKernel::entered() == nullptr) return __real_accept4(fd, address, length, flags);
  auto connection = file<SimulatedListener>(fd)->accept();
  if (connection == nullptr) return static_cast<int>(result(-EAGAIN));
  return SimulatedKernel::process().open(std::move(connection));
}

ssize_t __real_recv(int, void*, size_t, int);
ssize_t __wrap_recv(int fd, void* data, size_t bytes, int flags) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_recv(fd, data, bytes, flags);
  const auto connection = file<SimulatedConnection>(fd);
  if (connection == nullptr) return result(-EBADF);
  const auto got = connection->read(static_cast<char*>(data), bytes);
  kernel->scheduler().trace("reads", SimulatedKernel::process().pid(), got);
  return result(got);
}

ssize_t __real_send(int, const void*, size_t, int);
ssize_t __wrap_send(int fd, const void* data, size_t bytes, int flags) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_send(fd, data, bytes, flags);
  const auto connection = file<SimulatedConnection>(fd);
  if (connection == nullptr) return result(-EBADF);
  const auto sent = connection->write({static_cast<const char*>(data), bytes});
  kernel->scheduler().trace("writes", SimulatedKernel::process().pid(), sent);
  return result(sent);
}

ssize_t __real_sendmsg(int, const msghdr*, int);
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_sendmsg(fd, message, flags);
  std::string bytes;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    const auto& part = message->msg_iov[i];
    bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
  }
  return __wrap_send(fd, bytes.data(), bytes.size(), flags);
}

ssize_t __real_readv(int, const iovec*, int);
ssize_t __wrap_readv(int fd, const iovec* parts, int count) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_readv(fd, parts, count);
  std::size_t asked = 0;
  for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
  std::string bytes(std::min(asked, kernel->network().settings().buffer), '\0');
  const auto got = __wrap_recv(fd, bytes.data(), bytes.size(), 0);
  std::size_t given = 0;
  for (int i = 0; i < count && got > 0; ++i) {
    const auto part = std::min(parts[i].iov_len, static_cast<std::size_t>(got) - given);
    given += bytes.copy(static_cast<char*>(parts[i].iov_base), part, given);
  }
  return got;
}

ssize_t __real_read(int, void*, size_t);
ssize_t __wrap_read(int fd, void* data, size_t bytes) {
  auto* kernel = SimulatedKernel::current();
  const auto event = kernel != nullptr ? file<SimulatedEvent>(fd) : nullptr;
  if (event == nullptr) return __real_read(fd, data, bytes);
  kernel->enter();
  if (event->count == 0) return result(-EAGAIN);
  const auto value = std::exchange(event->count, 0);
  std::memcpy(data, &value, sizeof value);
  return sizeof value;
}

ssize_t __real_write(int, const void*, size_t);
ssize_t __wrap_write(int fd, const void* data, size_t bytes) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_write(fd, data, bytes);
  auto& process = SimulatedKernel::process();
  if (fd == STDERR_FILENO) {
    process.stderr_text.append(static_cast<const char*>(data), bytes);
    return static_cast<ssize_t>(bytes);
  }
  std::uint64_t value = 0;
  std::memcpy(&value, data, sizeof value);
  file<SimulatedEvent>(fd)->count += value;
  ++process.news;
  kernel->scheduler().notify(&process);
  return static_cast<ssize_t>(bytes);
}

int __real_close(int);
int __wrap_close(int fd) {
  if (SimulatedKernel::entered() == nullptr) return __real_close(fd);
  SimulatedKernel::process().close(fd);
  return 0;
}

int __real_poll(pollfd*, nfds_t, int);
int __wrap_poll(pollfd* entries, nfds_t count, int timeout) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_poll(entries, count, timeout);
  return wait_until(*kernel, limit(timeout), [&] {
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      const auto open = SimulatedKernel::process().file(entries[i].fd);
      const int events = open == nullptr ? POLLNVAL : open->ready();
      entries[i].revents =
          static_cast<short>(events & (entries[i].events | POLLERR | POLLHUP | POLLNVAL));
      ready += entries[i].revents != 0 ? 1 : 0;
    }
    return ready;
  });
}

int __real_epoll_create1(int);
int __wrap_epoll_create1(int flags) {
  if (SimulatedKernel::entered() == nullptr) return __real_epoll_create1(flags);
  return SimulatedKernel::process().open(std::make_shared<SimulatedEpoll>());
}

int __real_epoll_ctl(int, int, int, epoll_event*);
int __wrap_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  if (SimulatedKernel::entered() == nullptr) return __real_epoll_ctl(epoll, operation, fd, event);
  auto& entries = file<SimulatedEpoll>(epoll)->entries;
  if (operation == EPOLL_CTL_DEL) {
    entries.erase(fd);
  } else {
    entries[fd] = {.file = SimulatedKernel::process().file(fd), .event = *event};
  }
  return 0;
}

int __real_epoll_wait(int, epoll_event*, int, int);
int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_epoll_wait(epoll, events, most, timeout);
  return await_events(*kernel, epoll, events, most, limit(timeout));
}

int __real_epoll_pwait2(int, epoll_event*, int, const timespec*, const sigset_t*);
int __wrap_epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout,
                        const sigset_t* signals) {
  auto* kernel = SimulatedKernel::entered();
  if (kernel == nullptr) return __real_epoll_pwait2(epoll, events, most, timeout, signals);
  return await_events(*kernel, epoll, events, most,
                      std::chrono::seconds(timeout->tv_sec) + Time(timeout->tv_nsec));
}

int __real_eventfd(unsigned, int);
int __wrap_eventfd(unsigned count, int flags) {
  if (SimulatedKernel::entered() == nullptr) return __real_eventfd(count, flags);
  return SimulatedKernel::process().open(std::make_shared<SimulatedEvent>());
}

int __real_getsockname(int, sockaddr*, socklen_t*);
int __wrap_getsockname(int fd, sockaddr* address, socklen_t* length) {
  if (SimulatedKernel::current() == nullptr) return __real_getsockname(fd, address, length);
  const auto listener = file<SimulatedListener>(fd);
  return static_cast<int>(
      give_address(listener != nullptr ? listener->address : file<SimulatedConnection>(fd)->local(),
                   address, length));
}

int __real_getpeername(int, sockaddr*, socklen_t*);
int __wrap_getpeername(int fd, sockaddr* address, socklen_t* length) {
  if (SimulatedKernel::current() == nullptr) return __real_getpeername(fd, address, length);
  return static_cast<int>(give_address(file<SimulatedConnection>(fd)->remote(), address, length));
}

int __real_getsockopt(int, int, int, void*, socklen_t*);
int __wrap_getsockopt(int fd, int level, int option, void* value, socklen_t* length) {
  if (SimulatedKernel::current() == nullptr) {
    return __real_getsockopt(fd, level, option, value, length);
  }
  const int error = option == SO_ERROR ? file<SimulatedConnection>(fd)->take_error() : 0;
  std::memcpy(value, &error, sizeof error);
  return 0;
}

int __real_setsockopt(int, int, int, const void*, socklen_t);
int __wrap_setsockopt(int fd, int level, int option, const void* value, socklen_t length) {
  if (SimulatedKernel::current() == nullptr) {
    return __real_setsockopt(fd, level, option, value, length);
  }
  return 0;
}

ssize_t __real_readlink(const char*, char*, size_t);
ssize_t __wrap_readlink(const char* path, char* target, size_t bytes) {
  if (SimulatedKernel::current() == nullptr) return __real_readlink(path, target, bytes);
  // The network namespace, which distinguishes hosts.
  return ::snprintf(target, bytes, "net:[%d]", SimulatedKernel::process().host());
}

int __real_getifaddrs(ifaddrs**);
int __wrap_getifaddrs(ifaddrs** first) {
  if (SimulatedKernel::current() == nullptr) return __real_getifaddrs(first);
  *first = (new Interfaces(SimulatedKernel::process().host()))->entries.data();
  return 0;
}

void __real_freeifaddrs(ifaddrs*);
void __wrap_freeifaddrs(ifaddrs* first) {
  if (SimulatedKernel::current() == nullptr) return __real_freeifaddrs(first);
  // The entries are the first member of Interfaces.
  delete reinterpret_cast<Interfaces*>(first);
}

void __real_randombytes_buf(void*, size_t);
void __wrap_randombytes_buf(void* data, size_t bytes) {
  auto* kernel = SimulatedKernel::current();
  if (kernel == nullptr) return __real_randombytes_buf(data, bytes);
  auto* const begin = static_cast<unsigned char*>(data);
  std::generate_n(begin, bytes,
                  [&] { return static_cast<unsigned char>(kernel->random().bits()); });
}

}  // extern "C"
