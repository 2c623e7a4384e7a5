#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/host/peer_watch.h"
#include "core/deadline.h"
#include "core/process.h"

namespace lockstep::inline v0_2::host {

/// The process at the other end of a connected unix socket, as the kernel knows it; pid 0 where it
/// is of another pid namespace.
ucred peer_of(int socket);

/// "process 77 (train)", for messages.
std::string process_text(pid_t pid);

/// The process that holds the abstract unix address of this name, whether it listens there or not:
/// as process_text(), or "a process that cannot be seen from here".
std::string holder_of(std::string_view name);

/// The first message of a rank to rank 0.
struct Hello {
  static constexpr std::uint64_t expected_magic = 0x6d656574'6b636f6c;  // "lockmeet"
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
};

/// The ranks that rank 0 has let in. They wait in the world's memory for those that are still to
/// come.
class Arrivals {
 public:
  explicit Arrivals(int size) : here_(static_cast<std::size_t>(size), false) { here_[0] = true; }

  bool complete() const;
  bool may_be(int rank) const;
  void add(int rank, pid_t pid);
  std::string missing() const;
  /// -1 if all are here.
  int lowest_missing() const;
  /// A rank that came and whose process has ended since.
  std::optional<int> ended() const;
  /// Adds what becomes readable when one of them ends.
  void watch(std::vector<pollfd>& waiting) const;

 private:
  std::vector<bool> here_;
  std::vector<std::pair<int, ProcessWatch>> processes_;
};

/// Connections to rank 0 whose process has not sent its Hello yet. A silent one is dropped after
/// 5 s and delays no other; only processes of the same user are accepted.
class PendingConnections {
 public:
  using Hear = std::function<void(int socket, pid_t pid, const Hello& hello)>;

  explicit PendingConnections(int size);

  void add(detail::Descriptor socket);
  /// Adds what becomes readable when one of them sends.
  void watch(std::vector<pollfd>& waiting) const;
  /// Calls hear for each that has sent its Hello; drops the silent ones and those that sent
  /// anything else.
  void look(const Hear& hear);
  /// Those that were dropped, for messages: "; process 77 (nc) connected and sent no hello".
  std::string dropped() const;

 private:
  struct Connection {
    detail::Descriptor socket;
    pid_t pid;
    detail::Deadline until;
  };
  using Place = std::vector<Connection>::iterator;

  Place drop(Place one);

  std::size_t most_;
  std::vector<Connection> waiting_;  ///< in the order in which they came
  std::string last_dropped_;
  int dropped_ = 0;
};

}  // namespace lockstep::host
