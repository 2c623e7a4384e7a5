#pragma once

#include <poll.h>
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
#include "core/system/process.h"

namespace lockstep::inline v0_2::host {

/// "process 77 (train)", for error texts.
std::string process_text(pid_t pid);

/// The process that has bound the abstract Unix address of this name: as process_text(), or "a
/// process that cannot be seen from here".
std::string holder_of(std::string_view name);

/// The message that a rank sends to rank 0 after connecting.
struct Hello {
  static constexpr std::uint64_t expected_magic = 0x6d656574'6b636f6c;  // "lockmeet"
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
};

/// The ranks that rank 0 has admitted to the world, and their processes.
class JoinedRanks {
 public:
  explicit JoinedRanks(int size) : joined_(static_cast<std::size_t>(size), false) {
    joined_[0] = true;
  }

  std::vector<int> missing() const;
  bool can_join(int rank) const;
  void add(int rank, pid_t pid);
  /// A rank that has joined and whose process has ended.
  std::optional<int> ended() const;
  /// Adds descriptors that become readable when a joined process ends.
  void watch(std::vector<pollfd>& waiting) const;

 private:
  std::vector<bool> joined_;
  std::vector<std::pair<int, ProcessWatch>> processes_;
};

/// Connections to rank 0 whose process has not sent its Hello yet. A connection without a Hello is
/// closed after 5 s and does not delay others. Only processes of the same user are accepted.
class PendingConnections {
 public:
  using OnHello = std::function<void(int socket, pid_t pid, const Hello& hello)>;

  explicit PendingConnections(int size);

  void add(detail::Descriptor socket);
  /// Adds descriptors that become readable when a Hello arrives.
  void watch(std::vector<pollfd>& waiting) const;
  /// Calls on_hello for each connection that has sent its Hello. Closes connections that sent other
  /// data, or nothing for 5 s.
  void read_hellos(const OnHello& on_hello);
  /// The closed connections, for error texts: "; process 77 (nc) connected and sent no hello".
  std::string dropped() const;

 private:
  struct Connection {
    detail::Descriptor socket;
    pid_t pid;
    detail::Deadline until;
  };
  using Position = std::vector<Connection>::iterator;

  Position drop(Position one);

  std::size_t most_;
  std::vector<Connection> waiting_;  ///< in the order in which they were accepted
  std::string last_dropped_;
  int dropped_ = 0;
};

}  // namespace lockstep::host
