#include "comm/host/world/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/control/address.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/arena.h"
#include "comm/host/world/arrivals.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How ranks of another launcher join a world]
// The world's memory has no name, so its descriptor must be passed from process to process. Rank 0
// listens on an abstract Unix socket, which ends with its process and is in no file system. The
// socket's name is derived from the user and the job, including the launcher's random token if it
// has one. Both sides ask the kernel for the other side's user, and refuse another user. A process
// of another user that guesses the name can block the rendezvous, but cannot join or read a world.
// A process of the same user could read the memory through /proc anyway. When all ranks have
// joined, the socket is closed.
// A rank may end before all have joined. Rank 0 therefore writes the pids of joined ranks into the
// world's memory. Rank 0 watches the joined ranks, and they watch rank 0 and one another. All watch
// the launcher, which may end before it has started every rank. The caller may know of more
// processes.

namespace lockstep::inline v0_2::host {
namespace {

using control::peer_of;
using control::UnixAddress;
using detail::concat;
using detail::Deadline;
using detail::Descriptor;
using detail::plural;

/// Rank 0's answer. The descriptor is sent with it if the rank is admitted.
struct Answer {
  char refusal[256];  ///< error text; empty if the rank is admitted
};

/// The name of a job's address.
std::string name_of(const std::string& job) {
  // Job names have any length, addresses do not: hash the name (FNV-1a).
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return concat("lockstep-", ::geteuid(), '-', detail::hex(hash));
}

/// A non-blocking socket.
Descriptor make_socket() {
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) throw CommError(concat("host: no unix socket: ", std::strerror(errno)));
  return made;
}

/// Waits until one of the descriptors is ready, at most for one nap of the deadline. Returns the
/// result of poll().
int sleep_once(std::vector<pollfd> waiting, Deadline& until) {
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(until.nap());
  return ::poll(waiting.data(), waiting.size(), static_cast<int>(limit.count()));
}

/// Whether the descriptor becomes readable before the deadline.
bool await(int fd, Deadline& until, const std::function<void()>& check) {
  for (;;) {
    check();
    const int ready = sleep_once({{.fd = fd, .events = POLLIN, .revents = 0}}, until);
    if (ready > 0) return true;
    if (ready == 0 && until.passed()) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
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
  // If the peer has ended, the world's first barrier detects it.
  ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

Descriptor listen_at(const std::string& name, int size, const std::string& call) {
  Descriptor listening = make_socket();
  const UnixAddress address(name);
  if (::bind(listening.get(), address.get(), address.length()) == 0 &&
      ::listen(listening.get(), SOMAXCONN) == 0) {
    return listening;
  }
  const int error = errno;
  throw CommError(concat(
      call, ": rank 0 of ", size, " cannot open the rendezvous socket: ", std::strerror(error),
      error != EADDRINUSE ? ""
                          : concat(": it is held by ", holder_of(name),
                                   "; does another process say that it is rank 0 of this job?")));
}

std::shared_ptr<World> admit_ranks(const std::string& name, int size, Deadline& until,
                                   std::chrono::milliseconds timeout, const JoinCheck& check,
                                   const NewWorld& settings) {
  const auto& call = settings.call;
  auto world = World::create(size, settings.heap_bytes);
  const Descriptor listening = listen_at(name, size, call);
  publish_pid(world->arena().rank(0), ::getpid());
  JoinedRanks joined(size);
  PendingConnections pending(size);
  const auto fail = [&](Failure failure) {
    world->fail(failure);
    const ErrorDetails details{.rank = failure.rank, .operation = call};
    if (failure.kind == Failure::Kind::timeout) throw TimeoutError(failure.text, details);
    throw CommError(failure.text, details);
  };
  const auto on_hello = [&](int peer, pid_t pid, const Hello& hello) {
    std::string refusal;
    if (hello.size != size) {
      refusal = concat(call, ": rank ", hello.rank, " expects a world of ",
                       plural(hello.size, "rank"), ", rank 0 one of ", size);
    } else if (!joined.can_join(hello.rank)) {
      refusal = concat(call, ": two processes say that they are rank ", hello.rank, " of ", size,
                       "; one is ", process_text(pid));
    } else if (pid != 0) {
      publish_pid(world->arena().rank(hello.rank), pid);
    }
    answer(peer, refusal, world->fd());
    if (!refusal.empty())
      fail({.kind = Failure::Kind::mismatch, .rank = hello.rank, .text = refusal});
    joined.add(hello.rank, pid);
  };
  while (!joined.missing().empty()) {
    std::vector<pollfd> waiting{{.fd = listening.get(), .events = POLLIN, .revents = 0}};
    pending.watch(waiting);
    joined.watch(waiting);
    if (!joined.ended()) sleep_once(std::move(waiting), until);
    for (;;) {
      Descriptor peer(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!peer) break;
      pending.add(std::move(peer));
    }
    pending.read_hellos(on_hello);
    if (const auto rank = joined.ended()) {
      fail({.kind = Failure::Kind::left,
            .rank = *rank,
            .text = concat(call, ": rank ", *rank, " of ", size, " ended while ranks ",
                           detail::joined(joined.missing(), ", "), " had still to call ", call)});
    }
    if (const auto why = check ? check() : std::nullopt) {
      fail({.text = concat(call, " rank 0 of ", size, ": ", *why)});
    }
    if (const auto missing = joined.missing(); !missing.empty() && until.passed()) {
      fail({.kind = Failure::Kind::timeout,
            .rank = missing.front(),
            .text = concat(call, ": rank 0 of ", size, " waited ", timeout.count() / 1000.0,
                           " s for ranks ", detail::joined(missing, ", "), " to call ", call,
                           pending.dropped())});
    }
  }
  return world;
}

std::shared_ptr<World> join_rank_0(const std::string& name, int rank, int size, Deadline& until,
                                   std::chrono::milliseconds timeout, const JoinCheck& check,
                                   const std::string& call) {
  constexpr auto longest_nap = std::chrono::milliseconds(20);
  const UnixAddress address(name);
  const auto late = [&](std::string_view what) {
    return TimeoutError(concat(call, ": rank ", rank, " of ", size, " waited ",
                               timeout.count() / 1000.0, " s for rank 0 ", what),
                        {.rank = 0, .operation = call});
  };
  auto nap = std::chrono::microseconds(100);
  const auto expect_joining = [&] {
    // The launcher may have started this rank only.
    if (const auto why = check ? check() : std::nullopt) {
      throw CommError(concat(call, " rank ", rank, " of ", size, ": ", *why));
    }
  };
  for (;;) {
    expect_joining();
    const Descriptor socket = make_socket();
    if (::connect(socket.get(), address.get(), address.length()) != 0) {
      if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) {
        throw CommError(concat(call, ": rank ", rank, " of ", size,
                               " cannot reach rank 0: ", std::strerror(errno)));
      }
      // Rank 0 has not called init() yet, or has ended; the two cannot be distinguished. Or another
      // process has bound the address and does not listen.
      if (until.passed()) {
        const auto holder = holder_of(name);
        throw late(holder.starts_with("process ")
                       ? concat("to call ", call, "; ", holder, " holds its address")
                       : concat("to call ", call, "; it was not started, or has ended"));
      }
      std::this_thread::sleep_for(nap);
      nap = std::min<std::chrono::microseconds>(2 * nap, longest_nap);
      continue;
    }
    if (const auto user = peer_of(socket.get()).uid; user != ::geteuid()) {
      throw CommError(concat(call, ": rank ", rank, " of ", size,
                             ": the rendezvous socket belongs to user ", user, ", expected user ",
                             ::geteuid()));
    }
    const Hello hello{.magic = Hello::expected_magic, .rank = rank, .size = size};
    ::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL);
    const auto peer = process_text(peer_of(socket.get()).pid);
    if (!await(socket.get(), until, expect_joining)) {
      throw late(concat("to answer; ", peer, " holds its address and is stuck"));
    }

    Answer content{};
    iovec data{.iov_base = &content, .iov_len = sizeof content};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) != sizeof content) {
      throw CommError(concat(call, ": rank 0 of ", size, " ended while rank ", rank,
                             " joined: ", peer, " held its address"),
                      {.rank = 0, .operation = call});
    }
    if (content.refusal[0] != '\0') {
      throw CommError(content.refusal, {.rank = rank, .operation = call});
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
      throw CommError(concat(call, ": rank ", rank, " of ", size, " got no memory from rank 0"));
    }
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return World::attach(descriptor, size);
  }
}

}  // namespace

std::shared_ptr<World> rendezvous(const std::string& job, int rank, int size,
                                  std::chrono::milliseconds timeout, const JoinCheck& check,
                                  const NewWorld& settings) {
  Deadline until(timeout);
  const auto name = name_of(job);
  return rank == 0 ? admit_ranks(name, size, until, timeout, check, settings)
                   : join_rank_0(name, rank, size, until, timeout, check, settings.call);
}

std::string job_by_ancestor(const std::string& variable) {
  const long pid = detail::ancestor_without(variable);
  return concat("process ", pid, " of ", detail::read_process(pid).start);
}

}  // namespace lockstep::host
