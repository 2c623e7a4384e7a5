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
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/control/address.h"
#include "comm/host/peer_watch.h"
#include "core/deadline.h"
#include "core/environment.h"
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
using control::process_text;
using control::UnixAddress;
using detail::concat;
using detail::Deadline;
using detail::Descriptor;
using detail::plural;
using detail::ReportTimes;

/// Rank 0's answer. The descriptor is sent with it if the rank is admitted.
struct Answer {
  Answer() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  std::array<char, 256> refusal{};  ///< error text; empty if the rank is admitted
  iovec data{.iov_base = refusal.data(), .iov_len = refusal.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
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
  Answer answer;
  refusal.copy(answer.refusal.data(), answer.refusal.size() - 1);
  if (refusal.empty()) {
    cmsghdr* header = CMSG_FIRSTHDR(&answer.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  } else {
    answer.message.msg_controllen = 0;
  }
  // If the peer has ended, the world's first barrier detects it.
  ::sendmsg(fd, &answer.message, MSG_NOSIGNAL);
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
      error != EADDRINUSE ? "" : "; does another process say that it is rank 0 of this job?"));
}

/// The side of rank 0, which creates the world and admits the other ranks. A connection without a
/// Hello does not delay others. Only processes of the same user are accepted.
class Admission {
 public:
  Admission(const std::string& name, int size, const JoinCheck& check, const NewWorld& settings)
      : size_(size),
        call_(settings.call),
        check_(check),
        world_(World::create(size, settings.heap_bytes)),
        listening_(listen_at(name, size, call_)) {
    publish_pid(world_->rank(0), ::getpid());
  }

  std::shared_ptr<World> run(Deadline& until, std::chrono::milliseconds timeout) {
    ReportTimes reports(Environment::get().stall_warning);
    while (!missing().empty()) {
      await_any(until);
      accept_connections();
      read_hellos();
      const auto absent = missing();
      const auto list = detail::rank_list(absent);
      const auto waits = [&](std::string_view verb, std::chrono::milliseconds time) {
        return concat(call_, ": rank 0 of ", size_, ' ', verb, ' ', time.count() / 1000.0,
                      " s for ", list, " to call ", call_);
      };
      if (const auto rank = ended()) {
        fail({.kind = Failure::Kind::left,
              .rank = *rank,
              .text = concat(call_, ": rank ", *rank, " of ", size_, " ended while ", list,
                             " had still to call ", call_)});
      }
      if (const auto why = check_ ? check_() : std::nullopt) {
        fail({.text = concat(call_, " rank 0 of ", size_, ": ", *why)});
      }
      if (absent.empty()) break;
      if (const auto time = reports.due(until.elapsed())) log::notice(waits("has waited", *time));
      if (until.passed()) {
        fail({.kind = Failure::Kind::timeout,
              .rank = absent.front(),
              .text = waits("waited", timeout)});
      }
    }
    return world_;
  }

 private:
  /// A connection whose process has not sent its Hello yet.
  struct Connection {
    Descriptor socket;
    pid_t pid;
  };

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank) {
      if (!joined_.contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  /// A rank that has joined and whose process has ended.
  std::optional<int> ended() const {
    const auto found = std::ranges::find_if(
        joined_, [](const auto& one) { return one.second && one.second->ended(); });
    return found == joined_.end() ? std::nullopt : std::optional(found->first);
  }

  /// Waits until a rank connects, sends its Hello or ends.
  void await_any(Deadline& until) const {
    std::vector<pollfd> waiting;
    const auto add = [&](int fd) { waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
    add(listening_.get());
    for (const auto& one : connections_) add(one.socket.get());
    for (const auto& [rank, process] : joined_) add(process ? process->fd() : -1);
    if (!ended()) sleep_once(std::move(waiting), until);
  }

  void accept_connections() {
    for (;;) {
      Descriptor peer(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!peer) return;
      const ucred who = peer_of(peer.get());
      if (who.uid != ::geteuid()) {
        log::warn(
            concat("init: user ", who.uid,
                   " connected to the rendezvous socket of the ranks; the connection was refused"));
        continue;
      }
      connections_.push_back({.socket = std::move(peer), .pid = who.pid});
    }
  }

  /// Admits each rank that has sent its Hello. Closes connections that sent other data.
  void read_hellos() {
    std::erase_if(connections_, [this](const Connection& one) {
      Hello hello{};
      const auto got = ::recv(one.socket.get(), &hello, sizeof hello, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (got == sizeof hello && hello.magic == Hello::expected_magic) admit(one, hello);
      return true;
    });
  }

  void admit(const Connection& peer, const Hello& hello) {
    const bool can_join = hello.rank > 0 && hello.rank < size_ && !joined_.contains(hello.rank);
    std::string refusal;
    if (hello.size != size_) {
      refusal = concat(call_, ": rank ", hello.rank, " expects a world of ",
                       plural(hello.size, "rank"), ", rank 0 one of ", size_);
    } else if (!can_join) {
      refusal = concat(call_, ": two processes say that they are rank ", hello.rank, " of ", size_,
                       "; one is ", process_text(peer.pid));
    } else if (peer.pid != 0) {
      publish_pid(world_->rank(hello.rank), peer.pid);
    }
    answer(peer.socket.get(), refusal, world_->fd());
    if (!refusal.empty()) {
      fail({.kind = Failure::Kind::mismatch, .rank = hello.rank, .text = refusal});
    }
    // A process of another pid namespace cannot be watched.
    auto& process = joined_[hello.rank];
    if (peer.pid != 0) process.emplace(peer.pid);
  }

  [[noreturn]] void fail(const Failure& failure) {
    world_->fail(failure);
    const ErrorDetails details{.rank = failure.rank, .operation = call_};
    if (failure.kind == Failure::Kind::timeout) throw TimeoutError(failure.text, details);
    throw CommError(failure.text, details);
  }

  int size_;
  const std::string& call_;
  const JoinCheck& check_;
  std::shared_ptr<World> world_;
  Descriptor listening_;
  std::map<int, std::optional<ProcessWatch>> joined_;  ///< the ranks that were admitted
  std::vector<Connection> connections_;
};

std::shared_ptr<World> join_rank_0(const std::string& name, int rank, int size, Deadline& until,
                                   std::chrono::milliseconds timeout, const JoinCheck& check,
                                   const std::string& call) {
  constexpr auto longest_nap = std::chrono::milliseconds(20);
  const UnixAddress address(name);
  auto awaited = concat("to call ", call);
  const auto waits = [&](std::string_view verb, std::chrono::milliseconds time) {
    return concat(call, ": rank ", rank, " of ", size, ' ', verb, ' ', time.count() / 1000.0,
                  " s for rank 0 ", awaited);
  };
  const auto late = [&] {
    return TimeoutError(waits("waited", timeout), {.rank = 0, .operation = call});
  };
  ReportTimes reports(Environment::get().stall_warning);
  auto nap = std::chrono::microseconds(100);
  const auto expect_joining = [&] {
    // The launcher may have started this rank only.
    if (const auto why = check ? check() : std::nullopt) {
      throw CommError(concat(call, " rank ", rank, " of ", size, ": ", *why));
    }
    if (const auto time = reports.due(until.elapsed())) log::notice(waits("has waited", *time));
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
        awaited += "; it was not started, has ended, or does not run";
        throw late();
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
    awaited = concat("to answer; ", peer, " holds its address and is stuck");
    if (!await(socket.get(), until, expect_joining)) throw late();

    Answer answer;
    if (::recvmsg(socket.get(), &answer.message, MSG_CMSG_CLOEXEC) !=
        static_cast<ssize_t>(answer.refusal.size())) {
      throw CommError(concat(call, ": rank 0 of ", size, " ended while rank ", rank,
                             " joined: ", peer, " held its address"),
                      {.rank = 0, .operation = call});
    }
    if (answer.refusal[0] != '\0') {
      throw CommError(answer.refusal.data(), {.rank = rank, .operation = call});
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&answer.message);
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
  return rank == 0 ? Admission(name, size, check, settings).run(until, timeout)
                   : join_rank_0(name, rank, size, until, timeout, check, settings.call);
}

std::string job_by_ancestor(const std::string& variable) {
  const long pid = detail::ancestor_without(variable);
  return concat("process ", pid, " of ", detail::read_process(pid).start);
}

}  // namespace lockstep::host
