// The calls for files and the network.
#include "tests/simulation/simulated_calls.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/simulation/simulated_files.h"

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
    entries[1].ifa_name = ethernet.data();
    entries[1].ifa_flags = IFF_UP;
    addresses[0] = addresses[1] = address_of_host(host);
    addresses[0].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (std::size_t i = 0; i < 2; ++i)
      entries[i].ifa_addr = reinterpret_cast<sockaddr*>(&addresses[i]);
  }
};

/// The limit of poll() and epoll_wait().
Time limit(int timeout_ms) {
  return timeout_ms < 0 ? forever : Time(std::chrono::milliseconds(timeout_ms));
}

/// Waits until found() is not 0 or the time limit is over.
template <class Found>
int wait_until(Time limit, const Found& found) {
  const auto until = limit == forever ? forever : kernel().scheduler().now() + limit;
  for (;;) {
    if (const int count = found()) return count;
    if (kernel().scheduler().now() >= until || !kernel().wait_for_files(until)) return found();
  }
}

int await_events(int epoll, epoll_event* events, int most, Time limit) {
  const auto open = file<SimulatedEpoll>(epoll);
  return wait_until(limit, [&] {
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
      std::swap(ready[i - 1], ready[kernel().random().bits() % i]);
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

SIMULATED_CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol)) {
  if (domain == AF_INET6) return static_cast<int>(result(-EAFNOSUPPORT));
  auto& process = SimulatedKernel::process();
  process.count_socket();
  return process.open(std::make_shared<SimulatedConnection>(kernel().network(), process));
}

SIMULATED_CALL(int, bind, (int fd, const sockaddr* address, socklen_t length),
               (fd, address, length)) {
  file<SimulatedConnection>(fd)->bind(address_of(address));
  return 0;
}

SIMULATED_CALL(int, listen, (int fd, int backlog), (fd, backlog)) {
  auto& process = SimulatedKernel::process();
  const auto listener = std::make_shared<SimulatedListener>(kernel().network(), process);
  listener->address = file<SimulatedConnection>(fd)->local();
  listener->address.sin_port =
      htons(kernel().network().bind(process.host(), ntohs(listener->address.sin_port), listener));
  listener->listen();
  process.replace(fd, listener);
  return 0;
}

SIMULATED_CALL(int, connect, (int fd, const sockaddr* address, socklen_t length),
               (fd, address, length)) {
  return static_cast<int>(result(file<SimulatedConnection>(fd)->connect(address_of(address))));
}

SIMULATED_CALL(int, accept4, (int fd, sockaddr* address, socklen_t* length, int flags),
               (fd, address, length, flags)) {
  auto connection = file<SimulatedListener>(fd)->accept();
  if (connection == nullptr) return static_cast<int>(result(-EAGAIN));
  return SimulatedKernel::process().open(std::move(connection));
}

SIMULATED_CALL(ssize_t, recv, (int fd, void* data, size_t bytes, int flags),
               (fd, data, bytes, flags)) {
  const auto connection = file<SimulatedConnection>(fd);
  if (connection == nullptr) return result(-EBADF);
  const auto got = connection->read(static_cast<char*>(data), bytes);
  kernel().scheduler().trace("reads", SimulatedKernel::process().pid(), got);
  return result(got);
}

SIMULATED_CALL(ssize_t, send, (int fd, const void* data, size_t bytes, int flags),
               (fd, data, bytes, flags)) {
  const auto connection = file<SimulatedConnection>(fd);
  if (connection == nullptr) return result(-EBADF);
  const auto sent = connection->write({static_cast<const char*>(data), bytes});
  kernel().scheduler().trace("writes", SimulatedKernel::process().pid(), sent);
  return result(sent);
}

SIMULATED(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags)) {
  std::string bytes;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    const auto& part = message->msg_iov[i];
    bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
  }
  return __wrap_send(fd, bytes.data(), bytes.size(), flags);
}

SIMULATED(ssize_t, readv, (int fd, const iovec* parts, int count), (fd, parts, count)) {
  std::size_t asked = 0;
  for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
  std::string bytes(std::min(asked, kernel().network().settings().buffer), '\0');
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

SIMULATED_CALL(ssize_t, write, (int fd, const void* data, size_t bytes), (fd, data, bytes)) {
  auto& process = SimulatedKernel::process();
  if (fd == STDERR_FILENO) {
    process.stderr_text.append(static_cast<const char*>(data), bytes);
    return static_cast<ssize_t>(bytes);
  }
  std::uint64_t value = 0;
  std::memcpy(&value, data, sizeof value);
  file<SimulatedEvent>(fd)->count += value;
  ++process.news;
  kernel().scheduler().notify(&process);
  return static_cast<ssize_t>(bytes);
}

SIMULATED_CALL(int, close, (int fd), (fd)) {
  SimulatedKernel::process().close(fd);
  return 0;
}

SIMULATED_CALL(int, poll, (pollfd * entries, nfds_t count, int timeout),
               (entries, count, timeout)) {
  return wait_until(limit(timeout), [&] {
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

SIMULATED_CALL(int, epoll_create1, (int flags), (flags)) {
  return SimulatedKernel::process().open(std::make_shared<SimulatedEpoll>());
}

SIMULATED_CALL(int, epoll_ctl, (int epoll, int operation, int fd, epoll_event* event),
               (epoll, operation, fd, event)) {
  auto& entries = file<SimulatedEpoll>(epoll)->entries;
  if (operation == EPOLL_CTL_DEL) {
    entries.erase(fd);
  } else {
    entries[fd] = {.file = SimulatedKernel::process().file(fd), .event = *event};
  }
  return 0;
}

SIMULATED_CALL(int, epoll_wait, (int epoll, epoll_event* events, int most, int timeout),
               (epoll, events, most, timeout)) {
  return await_events(epoll, events, most, limit(timeout));
}

SIMULATED_CALL(int, epoll_pwait2,
               (int epoll, epoll_event* events, int most, const timespec* timeout,
                const sigset_t* signals),
               (epoll, events, most, timeout, signals)) {
  return await_events(epoll, events, most,
                      std::chrono::seconds(timeout->tv_sec) + Time(timeout->tv_nsec));
}

SIMULATED_CALL(int, eventfd, (unsigned count, int flags), (count, flags)) {
  return SimulatedKernel::process().open(std::make_shared<SimulatedEvent>());
}

SIMULATED(int, getsockname, (int fd, sockaddr* address, socklen_t* length), (fd, address, length)) {
  const auto listener = file<SimulatedListener>(fd);
  return static_cast<int>(
      give_address(listener != nullptr ? listener->address : file<SimulatedConnection>(fd)->local(),
                   address, length));
}

SIMULATED(int, getpeername, (int fd, sockaddr* address, socklen_t* length), (fd, address, length)) {
  return static_cast<int>(give_address(file<SimulatedConnection>(fd)->remote(), address, length));
}

SIMULATED(int, getsockopt, (int fd, int level, int option, void* value, socklen_t* length),
          (fd, level, option, value, length)) {
  const int error = option == SO_ERROR ? file<SimulatedConnection>(fd)->take_error() : 0;
  std::memcpy(value, &error, sizeof error);
  return 0;
}

SIMULATED(int, setsockopt, (int fd, int level, int option, const void* value, socklen_t length),
          (fd, level, option, value, length)) {
  return 0;
}

SIMULATED(ssize_t, readlink, (const char* path, char* target, size_t bytes),
          (path, target, bytes)) {
  // The network namespace, which distinguishes hosts.
  return ::snprintf(target, bytes, "net:[%d]", SimulatedKernel::process().host());
}

SIMULATED(int, getifaddrs, (ifaddrs * *first), (first)) {
  *first = (new Interfaces(SimulatedKernel::process().host()))->entries.data();
  return 0;
}

SIMULATED(void, freeifaddrs, (ifaddrs * first), (first)) {
  // The entries are the first member of Interfaces.
  delete reinterpret_cast<Interfaces*>(first);
}

SIMULATED(void, randombytes_buf, (void* data, size_t bytes), (data, bytes)) {
  auto* const begin = static_cast<unsigned char*>(data);
  std::generate_n(begin, bytes,
                  [&] { return static_cast<unsigned char>(kernel().random().bits()); });
}

}  // extern "C"
