#include "lockstep/comm/host/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/host/arena.h"
#include "lockstep/comm/host/process_watch.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

// Note [How ranks of a foreign launcher meet]
// The memory has no name that anybody could open, so its descriptor must be handed over. Rank 0
// listens on an abstract unix socket, which vanishes with it and lies in no file system; its name
// is made from user and job, with the launcher's random token where it has one. Both sides ask the
// kernel for the user at the other end and have nothing to do with another's: who guesses the name
// can be in the way, but cannot join or read a world. A process of the same user could take the
// memory out of /proc anyway. Once all ranks are here the socket is closed.
// Until then any of those who are here may end. Each knows the others' processes, of which rank 0
// tells in the memory: rank 0 watches those that it let in, and they watch it and one another.

namespace lockstep::host {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// What a rank says when it comes.
struct Hello {
  static constexpr std::uint64_t expected_magic = 0x6d656574'6b636f6c;  // "lockmeet"
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
};

/// What rank 0 answers, with the descriptor if it agrees.
struct Answer {
  char refusal[256];  ///< empty if it agrees
};

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
};

Address address_of(const std::string& job) {
  // Jobs have names of any length; FNV-1a keeps the address short.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : job) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  std::ostringstream name;
  name << "lockstep-" << ::geteuid() << '-' << std::hex << hash;
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::string text = name.str();
  text.copy(address.socket.sun_path + 1, sizeof address.socket.sun_path - 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

Socket make_socket() {
  Socket made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made.get() < 0) throw CommError(concat("init: no unix socket: ", std::strerror(errno)));
  return made;
}

/// The process at the other end, as the kernel knows it.
ucred peer_of(int fd) {
  ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t length = sizeof peer;
  ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

/// Whether any of these can be read before that time.
bool await(std::vector<pollfd> waiting, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const auto limit = std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 1 << 30);
    const int ready = ::poll(waiting.data(), waiting.size(), static_cast<int>(limit));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= until) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool await(int fd, Clock::time_point until) {
  return await(std::vector<pollfd>{{.fd = fd, .events = POLLIN, .revents = 0}}, until);
}

void answer(int fd, const std::string& refusal, int descriptor) {
  Answer content{};
  refusal.copy(content.refusal, sizeof content.refusal - 1);
  iovec data{.iov_base = &content, .iov_len = sizeof content};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (refusal.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ::sendmsg(fd, &message, MSG_NOSIGNAL);  // who is gone meanwhile is missed when the world meets
}

/// The ranks that rank 0 has let in. They wait in the world's memory for those who are still to
/// come.
class Arrivals {
 public:
  explicit Arrivals(int size) : here_(static_cast<std::size_t>(size), false) { here_[0] = true; }

  bool complete() const { return std::find(here_.begin(), here_.end(), false) == here_.end(); }
  bool may_be(int rank) const {
    return rank > 0 && rank < static_cast<int>(here_.size()) &&
           !here_[static_cast<std::size_t>(rank)];
  }
  void add(int rank, pid_t pid) {
    here_[static_cast<std::size_t>(rank)] = true;
    // A process of another pid namespace has no number here.
    if (pid != 0) processes_.emplace_back(rank, ProcessWatch(pid));
  }

  std::string missing() const {
    std::string text;
    for (std::size_t rank = 0; rank < here_.size(); ++rank) {
      if (!here_[rank]) text += concat(text.empty() ? "" : ", ", rank);
    }
    return text;
  }
  /// A rank that came and whose process has ended since.
  std::optional<int> ended() const {
    for (const auto& [rank, process] : processes_) {
      if (process.ended()) return rank;
    }
    return std::nullopt;
  }
  /// Until somebody comes, or one of those who came ends.
  bool await_change(int listening, Clock::time_point until) const {
    if (ended()) return true;
    std::vector<pollfd> waiting{{.fd = listening, .events = POLLIN, .revents = 0}};
    for (const auto& [rank, process] : processes_) {
      waiting.push_back({.fd = process.fd(), .events = POLLIN, .revents = 0});
    }
    return await(std::move(waiting), until);
  }

 private:
  std::vector<bool> here_;
  std::vector<std::pair<int, ProcessWatch>> processes_;
};

std::shared_ptr<World> receive_all(const Address& address, int size, Clock::time_point until,
                                   std::chrono::milliseconds timeout) {
  // A rank that connects and says nothing must not keep the others waiting.
  constexpr auto patience = std::chrono::seconds(5);
  auto world = World::create(size);
  const Socket listening = make_socket();
  if (::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) !=
          0 ||
      ::listen(listening.get(), size) != 0) {
    throw CommError(concat("init: rank 0 of ", size,
                           " cannot open the ranks' meeting place: ", std::strerror(errno),
                           errno == EADDRINUSE ? "; does another process say that it is rank 0 of "
                                                 "this job?"
                                               : ""));
  }
  tell_pid(world->arena().rank(0), ::getpid());
  Arrivals arrivals(size);
  while (!arrivals.complete()) {
    if (!arrivals.await_change(listening.get(), until)) {
      const auto text = concat("init: rank 0 of ", size, " waited ", timeout.count() / 1000.0,
                               " s for ranks ", arrivals.missing(), " to call init");
      world->fail({.kind = Failure::Kind::timeout, .text = text});
      throw TimeoutError(text);
    }
    if (const auto rank = arrivals.ended()) {
      const auto text = concat("init: rank ", *rank, " of ", size, " ended while ranks ",
                               arrivals.missing(), " had still to call init");
      world->fail({.kind = Failure::Kind::left, .rank = *rank, .text = text});
      throw CommError(text);
    }
    const Socket peer(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0) continue;
    const ucred who = peer_of(peer.get());
    if (who.uid != ::geteuid()) {
      log::warn(concat("init: user ", who.uid, " came to the ranks' meeting place; not let in"));
      continue;
    }
    Hello hello{};
    if (!await(peer.get(), std::min(until, Clock::now() + patience)) ||
        ::recv(peer.get(), &hello, sizeof hello, 0) != sizeof hello ||
        hello.magic != Hello::expected_magic) {
      continue;
    }
    std::string refusal;
    if (hello.size != size) {
      refusal = concat("init: rank ", hello.rank, " expects a world of ", hello.size,
                       " ranks, rank 0 one of ", size);
    } else if (!arrivals.may_be(hello.rank)) {
      refusal = concat("init: two processes say that they are rank ", hello.rank, " of ", size);
    } else if (who.pid != 0) {
      tell_pid(world->arena().rank(hello.rank), who.pid);
    }
    answer(peer.get(), refusal, world->fd());
    if (!refusal.empty()) {
      world->fail({.rank = hello.rank, .text = refusal});
      throw CommError(refusal);
    }
    arrivals.add(hello.rank, who.pid);
  }
  return world;
}

std::shared_ptr<World> come(const Address& address, int rank, int size, Clock::time_point until,
                            std::chrono::milliseconds timeout) {
  constexpr auto longest_nap = std::chrono::milliseconds(20);
  const auto late = [&](std::string_view what) {
    return TimeoutError(concat("init: rank ", rank, " of ", size, " waited ",
                               timeout.count() / 1000.0, " s for rank 0 ", what));
  };
  auto nap = std::chrono::microseconds(500);
  for (;;) {
    const Socket socket = make_socket();
    const auto* to = reinterpret_cast<const sockaddr*>(&address.socket);
    if (::connect(socket.get(), to, address.length) != 0) {
      if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) {
        throw CommError(concat("init: rank ", rank, " of ", size,
                               " cannot reach rank 0: ", std::strerror(errno)));
      }
      // Rank 0 is not there yet, or no longer: nothing of it would be left to tell.
      if (Clock::now() >= until) throw late("to call init; it was not started, or has ended");
      std::this_thread::sleep_for(nap);
      nap = std::min<std::chrono::microseconds>(2 * nap, longest_nap);
      continue;
    }
    if (const auto user = peer_of(socket.get()).uid; user != ::geteuid()) {
      throw CommError(concat("init: user ", user, " holds the meeting place of rank ", rank, " of ",
                             size, "; expected user ", ::geteuid()));
    }
    const Hello hello{.magic = Hello::expected_magic, .rank = rank, .size = size};
    ::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL);
    if (!await(socket.get(), until)) throw late("to answer; it has called init and is stuck");

    Answer content{};
    iovec data{.iov_base = &content, .iov_len = sizeof content};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) != sizeof content) {
      throw CommError(concat("init: rank 0 of ", size, " ended while rank ", rank, " joined"));
    }
    if (content.refusal[0] != '\0') throw CommError(content.refusal);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
      throw CommError(concat("init: rank ", rank, " of ", size, " got no memory from rank 0"));
    }
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return World::attach(descriptor, size);
  }
}

/// Of a process: parent, and when it started.
struct Process {
  long parent = 0;
  std::string start;
};

Process read_process(long pid) {
  std::ifstream in(concat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(in, line);
  // The name in brackets may hold spaces; the start is the 22nd field, counted from before it.
  const auto behind_name = line.rfind(')');
  Process process;
  if (behind_name == std::string::npos) return process;
  std::istringstream fields(line.substr(behind_name + 1));
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    if (number == 4) process.parent = std::stol(field);
    if (number == 22) process.start = field;
  }
  return process;
}

bool has_variable(long pid, const std::string& variable) {
  std::ifstream in(concat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  const std::string entry = variable + "=";
  return all.starts_with(entry) || all.find('\0' + entry) != std::string::npos;
}

}  // namespace

std::shared_ptr<World> meet(const std::string& job, int rank, int size,
                            std::chrono::milliseconds timeout) {
  // Longer than this is for ever, and sums of it must not overflow.
  constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);
  const auto until = Clock::now() + std::min(timeout, longest);
  const auto address = address_of(job);
  return rank == 0 ? receive_all(address, size, until, timeout)
                   : come(address, rank, size, until, timeout);
}

std::string job_by_ancestor(const std::string& variable) {
  long pid = ::getppid();
  while (pid > 1 && has_variable(pid, variable)) pid = read_process(pid).parent;
  return concat("process ", pid, " of ", read_process(pid).start);
}

}  // namespace lockstep::host
