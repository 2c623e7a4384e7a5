#include "comm/control/status_relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include "core/log.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How a question travels]
// `lockstep status` connects to the unix socket of a rank of its host. The kernel says which user
// connects, and the rank serves its own user only. The rank asks rank 0, which asks two ranks of
// each other host. The answers go back through rank 0. Rank 0 first names the hosts that it has
// asked, so that `lockstep status` can name those that do not answer. The asking rank names the
// host of rank 0 before that, because rank 0 may be stopped. Both also name the hosts that they
// suspect. All of it happens in the control threads, and the ranks continue to compute. A question
// has no effect on the world: a message that cannot be sent or understood is dropped.

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;

constexpr std::size_t most_clients = 8;
constexpr int most_waiting = 64;  ///< `lockstep status` that have connected and not been accepted
constexpr std::size_t asked_ranks = 2;  ///< of each host

struct Question {
  std::uint32_t id;
  std::int32_t asker;  ///< its rank
};

/// Precedes the bytes of an answer.
struct AnswerHeader {
  std::uint32_t id;
  std::int32_t asker;
  AnswerPart part;
};

/// Reads a value from the beginning of the bytes. False if there are too few.
template <class Value>
bool take(std::string_view& bytes, Value& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

/// The bytes of AnswerPart::host.
std::string host_bytes(const std::string& host, const std::vector<std::int32_t>& ranks) {
  auto bytes = bytes_of(static_cast<std::int32_t>(ranks.size()));
  for (const auto rank : ranks) bytes += bytes_of(rank);
  return bytes + host;
}

void watch_fd(int events, int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  ::epoll_ctl(events, EPOLL_CTL_ADD, fd, &event);
}

/// Runs fn. A question must not end the world, also if memory is short.
template <class Fn>
void attempt(const Fn& fn) noexcept {
  try {
    fn();
  } catch (const std::exception& error) {
    log::debug(concat("control: a question of lockstep status failed: ", error.what()));
  }
}

}  // namespace

std::string status_socket_name(long process) {
  return concat("lockstep-status-", ::geteuid(), '-', process);
}

StatusRelay::StatusRelay(StatusSource source, std::vector<Peer> peers, Send send,
                         Suspicions suspicions)
    : source_(std::move(source)),
      peers_(std::move(peers)),
      send_(std::move(send)),
      suspicions_(std::move(suspicions)) {
  if (source_.socket.empty()) return;
  const UnixAddress address(source_.socket);
  detail::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  detail::Descriptor events(::epoll_create1(EPOLL_CLOEXEC));
  if (!socket || !events || ::bind(socket.get(), address.get(), address.length()) != 0 ||
      ::listen(socket.get(), most_waiting) != 0) {
    log::debug(concat("control: rank ", source_.rank,
                      " answers no questions of lockstep status: ", std::strerror(errno)));
    return;
  }
  watch_fd(events.get(), socket.get());
  listening_ = std::move(socket);
  events_ = std::move(events);
}

void StatusRelay::on_ready() noexcept {
  attempt([this] {
    for (auto next = clients_.begin(); next != clients_.end();) {
      const auto client = next++;
      // It sends nothing: receive() finds out whether it is closed.
      if (client->connection.receive()) {
        advance(*client);
      } else {
        drop(client);
      }
    }
    accept_client();
  });
}

void StatusRelay::on_frame(const Frame& frame) noexcept {
  attempt([&] {
    std::string_view bytes = frame.payload;
    if (frame.kind == Kind::question) {
      Question question{};
      if (!take(bytes, question)) return;
      if (source_.rank == 0) {
        ask_hosts(question.id, question.asker);
      } else {
        answer(question.id, question.asker);
      }
      return;
    }
    AnswerHeader header{};
    if (!take(bytes, header)) return;
    if (header.asker == source_.rank) {
      deliver(header.id, frame);
    } else if (source_.rank == 0) {
      send_(header.asker, frame);
    }
  });
}

void StatusRelay::accept_client() {
  detail::Descriptor socket(
      ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket || peer_of(socket.get()).uid != ::geteuid()) return;
  if (clients_.size() >= most_clients) drop(clients_.begin());
  watch_fd(events_.get(), socket.get());
  auto& client =
      clients_.emplace_back(Client{.connection = Connection(std::move(socket)), .id = ++last_id_});
  if (source_.rank == 0) {
    ask_hosts(client.id, 0);
  } else {
    for (const auto& rank_0 : peers_) {
      if (rank_0.host == source_.host) continue;
      send_part(client.id, source_.rank, AnswerPart::host, host_bytes(rank_0.host, {rank_0.rank}));
    }
    send_suspicions(client.id, source_.rank);
    send_(0, {.kind = Kind::question,
              .payload = bytes_of(Question{.id = client.id, .asker = source_.rank})});
  }
}

void StatusRelay::drop(std::list<Client>::iterator client) {
  // A forked child may keep the socket open, which then stays in the epoll instance.
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, client->connection.fd(), nullptr);
  clients_.erase(client);
}

void StatusRelay::ask_hosts(std::uint32_t id, int asker) {
  std::map<std::string, std::vector<std::int32_t>> ranks;
  ranks[source_.host].push_back(source_.rank);
  std::string asking_host = source_.host;
  for (const auto& peer : peers_) {
    ranks[peer.host].push_back(peer.rank);
    if (peer.rank == asker) asking_host = peer.host;
  }
  ranks.erase(asking_host);
  send_suspicions(id, asker);
  for (auto& [host, of_host] : ranks) {
    std::ranges::sort(of_host);
    send_part(id, asker, AnswerPart::host, host_bytes(host, of_host));
  }
  send_part(id, asker, AnswerPart::all_asked, {});
  const auto question = bytes_of(Question{.id = id, .asker = asker});
  for (const auto& [host, of_host] : ranks) {
    for (std::size_t i = 0; i < std::min(of_host.size(), asked_ranks); ++i) {
      if (of_host[i] != source_.rank) {
        send_(of_host[i], {.kind = Kind::question, .payload = question});
      } else {
        answer(id, asker);
      }
    }
  }
}

void StatusRelay::send_suspicions(std::uint32_t id, int asker) {
  for (const auto& text : suspicions_()) send_part(id, asker, AnswerPart::suspected, text);
}

void StatusRelay::answer(std::uint32_t id, int asker) {
  for (const auto& record : source_.records()) send_part(id, asker, AnswerPart::record, record);
  send_part(id, asker, AnswerPart::end, source_.host);
}

void StatusRelay::send_part(std::uint32_t id, int asker, AnswerPart part, std::string_view bytes) {
  Frame frame{.kind = Kind::answer,
              .payload = bytes_of(AnswerHeader{.id = id, .asker = asker, .part = part})};
  frame.payload += bytes;
  if (asker == source_.rank) return deliver(id, frame);
  send_(source_.rank == 0 ? asker : 0, frame);
}

void StatusRelay::deliver(std::uint32_t id, const Frame& part) {
  const auto client = std::ranges::find(clients_, id, &Client::id);
  if (client == clients_.end()) return;
  client->connection.send(part);
  advance(*client);
}

void StatusRelay::advance(Client& client) {
  const int fd = client.connection.fd();
  epoll_event event{.events = EPOLLIN | (client.connection.flush() ? 0U : EPOLLOUT),
                    .data = {.fd = fd}};
  ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, fd, &event);
}

namespace {

detail::Descriptor connect_to(const std::string& name) {
  const UnixAddress address(name);
  detail::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::connect(socket.get(), address.get(), address.length()) != 0) return {};
  // Another user may have taken the name.
  return peer_of(socket.get()).uid == ::geteuid() ? std::move(socket) : detail::Descriptor();
}

void add_part(HostsAnswer& answer, const Frame& frame) {
  std::string_view bytes = frame.payload;
  AnswerHeader header{};
  if (frame.kind != Kind::answer || !take(bytes, header)) return;
  const auto part = header.part;
  if (part == AnswerPart::record) {
    answer.records.emplace_back(bytes);
  } else if (part == AnswerPart::suspected) {
    answer.suspicions.emplace_back(bytes);
  } else if (part == AnswerPart::all_asked) {
    answer.is_complete = true;  // unless a host does not answer
  } else if (part == AnswerPart::end) {
    for (auto& host : answer.hosts) {
      if (host.name == bytes) host.has_answered = true;
    }
  } else if (part == AnswerPart::host) {
    HostsAnswer::Host host;
    std::int32_t count = 0, rank = 0;
    for (take(bytes, count); count > 0 && take(bytes, rank); --count) host.ranks.push_back(rank);
    host.name = bytes;
    const auto known = std::ranges::find(answer.hosts, host.name, &HostsAnswer::Host::name);
    if (known == answer.hosts.end()) {
      answer.hosts.push_back(std::move(host));
    } else {
      *known = std::move(host);
    }
  }
}

}  // namespace

HostsAnswer ask_hosts(const std::string& socket, std::chrono::milliseconds longest) {
  HostsAnswer answer;
  auto connected = connect_to(socket);
  if (!connected) return answer;
  Connection connection(std::move(connected));
  const auto until = std::chrono::steady_clock::now() + longest;
  const auto is_complete = [&] {
    return answer.is_complete &&
           std::ranges::all_of(answer.hosts, &HostsAnswer::Host::has_answered);
  };
  try {
    while (!is_complete()) {
      const auto frame = await_frame(connection, until);
      if (!frame) break;
      add_part(answer, *frame);
    }
  } catch (const CommError&) {
    // A rank of another version, which gives no answer.
  }
  answer.is_complete = is_complete();
  return answer;
}

}  // namespace lockstep::control
