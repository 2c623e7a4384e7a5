#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/connection.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::control {

/// What a rank tells about the ranks of its host, and to whom.
struct StatusSource {
  int rank = 0;
  std::string host = {};
  /// The name of the socket, of status_socket_name(); empty: nobody can ask this rank.
  std::string socket = {};
  /// The records of the ranks of this host, each below longest_answer bytes.
  std::function<std::vector<std::string>()> records = {};
};

/// The longest record in an answer.
/// Units: bytes.
inline constexpr std::size_t longest_answer = longest_status_payload - 64;

/// The name of a process's socket for questions, in the abstract namespace of unix sockets: it ends
/// with the process.
std::string status_socket_name(long process);

/// What a message of an answer holds.
enum class AnswerPart : std::uint32_t {
  /// A host that was asked; bytes: the number of its ranks, its ranks, its name. A rank that is not
  /// rank 0 first names the host of rank 0, with rank 0 alone. Rank 0 names all hosts.
  host,
  all_asked,  ///< no host follows
  suspected,  ///< a host whose heartbeats are late; bytes: a text for the user
  record,     ///< bytes: a record of StatusSource::records()
  end         ///< a host has answered; bytes: its name
};

/// Answers questions of `lockstep status` about the ranks of all hosts, for one rank. The thread of
/// the Control calls it. Note [How a question travels] is in status_relay.cpp.
class StatusRelay {
 public:
  struct Peer {
    int rank;
    std::string host;
  };
  /// Sends a frame to a rank, if it is connected and has not left.
  using Send = std::function<void(int rank, const Frame& frame)>;
  /// One text for each host that this rank suspects.
  using Suspicions = std::function<std::vector<std::string>()>;
  /// peers: the ranks with a connection to this one. All other ranks on rank 0, rank 0 on others.
  StatusRelay(StatusSource source, std::vector<Peer> peers, Send send, Suspicions suspicions);

  /// Readable when on_ready() has work; -1 if nobody can ask this rank.
  int fd() const { return events_.get(); }
  void on_ready() noexcept;
  /// Processes a frame of the kinds question and answer.
  void on_frame(const Frame& frame) noexcept;

 private:
  /// A `lockstep status` that has asked this rank. It closes the socket when it has all answers.
  struct Client {
    Connection connection;
    std::uint32_t id;
  };

  void accept_client();
  void drop(std::list<Client>::iterator client);
  /// Sends queued bytes.
  void advance(Client& client);
  /// Rank 0 asks two ranks of each host but that of the asking rank: one may be stopped.
  void ask_hosts(std::uint32_t id, int asker);
  void answer(std::uint32_t id, int asker);
  void send_suspicions(std::uint32_t id, int asker);
  void send_part(std::uint32_t id, int asker, AnswerPart part, std::string_view bytes);
  /// Sends a part to a client.
  void deliver(std::uint32_t id, const Frame& part);

  StatusSource source_;
  std::vector<Peer> peers_;
  Send send_;
  Suspicions suspicions_;
  detail::Descriptor listening_;
  detail::Descriptor events_;
  std::list<Client> clients_;
  std::uint32_t last_id_ = 0;
};

/// The answer of the hosts of a job but this one.
struct HostsAnswer {
  struct Host {
    /// Whether rank 0 of the job is there and has not answered: no other host was asked.
    bool is_of_silent_rank_0() const { return !has_answered && ranks == std::vector{0}; }

    std::string name;
    std::vector<int> ranks;
    bool has_answered = false;
  };
  bool is_complete = false;  ///< every host has answered
  std::vector<Host> hosts = {};
  std::vector<std::string> suspicions = {};  ///< a text for each host whose heartbeats are late
  std::vector<std::string> records = {};     ///< of StatusSource::records(), of all hosts
};

/// Asks the rank at this socket of this host about the ranks of the other hosts. Waits at most
/// `longest`. The answer has no hosts if no rank of this user listens there.
HostsAnswer ask_hosts(const std::string& socket, std::chrono::milliseconds longest);

}  // namespace lockstep::control
