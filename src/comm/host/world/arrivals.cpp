#include "comm/host/world/arrivals.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "comm/control/address.h"
#include "core/log.h"
#include "core/system/process.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {
namespace {

using detail::concat;
namespace fs = std::filesystem;

/// The inode of the socket that is bound to the name; 0 for none.
std::uint64_t bound_inode(std::string_view name) {
  const auto path = concat('@', name);
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    // Fields: Num RefCount Protocol Flags Type St Inode Path. Accepted connections of a listener
    // have its name, too; connections that it has not accepted have no inode.
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, found;
    std::uint64_t inode = 0;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> found;
    constexpr const char* connected = "03";
    if (found == path && state != connected && inode != 0) return inode;
  }
  return 0;
}

bool holds(const fs::path& process, const std::string& file) {
  std::error_code none;
  for (fs::directory_iterator entry(process / "fd", none), end; !none && entry != end;
       entry.increment(none)) {
    std::error_code gone;
    if (fs::read_symlink(entry->path(), gone) == file && !gone) return true;
  }
  return false;
}

}  // namespace

std::string process_text(pid_t pid) {
  if (pid == 0) return "a process of another pid namespace";
  const auto name = detail::read_process(pid).name;
  return concat("process ", pid, name.empty() ? "" : concat(" (", name, ")"));
}

std::string holder_of(std::string_view name) {
  if (const auto inode = bound_inode(name); inode != 0) {
    const auto file = concat("socket:[", inode, "]");
    std::error_code none;
    for (fs::directory_iterator entry("/proc", none), end; !none && entry != end;
         entry.increment(none)) {
      const auto number = entry->path().filename().string();
      if (std::isdigit(static_cast<unsigned char>(number.front())) == 0) continue;
      if (holds(entry->path(), file)) return process_text(std::stoi(number));
    }
  }
  return "a process that cannot be seen from here";
}

namespace {

/// Time until a connection without a Hello is closed.
constexpr auto hello_timeout = std::chrono::seconds(5);
/// Connections that are kept in addition to one for each rank.
constexpr std::size_t spare = 64;

}  // namespace

bool JoinedRanks::can_join(int rank) const {
  return rank > 0 && rank < static_cast<int>(joined_.size()) &&
         !joined_[static_cast<std::size_t>(rank)];
}

void JoinedRanks::add(int rank, pid_t pid) {
  joined_[static_cast<std::size_t>(rank)] = true;
  // A process of another pid namespace cannot be watched.
  if (pid != 0) processes_.emplace_back(rank, ProcessWatch(pid));
}

std::vector<int> JoinedRanks::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < joined_.size(); ++rank) {
    if (!joined_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::optional<int> JoinedRanks::ended() const {
  for (const auto& [rank, process] : processes_) {
    if (process.ended()) return rank;
  }
  return std::nullopt;
}

void JoinedRanks::watch(std::vector<pollfd>& waiting) const {
  for (const auto& [rank, process] : processes_) {
    waiting.push_back({.fd = process.fd(), .events = POLLIN, .revents = 0});
  }
}

PendingConnections::PendingConnections(int size) : most_(static_cast<std::size_t>(size) + spare) {}

void PendingConnections::add(detail::Descriptor socket) {
  const ucred who = control::peer_of(socket.get());
  if (who.uid != ::geteuid()) {
    log::warn(
        concat("init: user ", who.uid,
               " connected to the rendezvous socket of the ranks; the connection was refused"));
    return;
  }
  if (waiting_.size() == most_) drop(waiting_.begin());
  waiting_.push_back(
      {.socket = std::move(socket), .pid = who.pid, .until = detail::Deadline(hello_timeout)});
}

void PendingConnections::watch(std::vector<pollfd>& waiting) const {
  for (const auto& one : waiting_) {
    waiting.push_back({.fd = one.socket.get(), .events = POLLIN, .revents = 0});
  }
}

void PendingConnections::read_hellos(const OnHello& on_hello) {
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    Hello hello{};
    const auto got = ::recv(one->socket.get(), &hello, sizeof hello, MSG_DONTWAIT);
    const bool nothing = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (got == sizeof hello && hello.magic == Hello::expected_magic) {
      const Connection known = std::move(*one);
      one = waiting_.erase(one);
      on_hello(known.socket.get(), known.pid, hello);
    } else if (nothing && !one->until.passed()) {
      ++one;
    } else {
      one = drop(one);
    }
  }
}

std::string PendingConnections::dropped() const {
  if (dropped_ == 0) return "";
  return concat("; ", last_dropped_, " connected and sent no hello",
                dropped_ == 1 ? "" : concat(", the last of ", dropped_, " such connections"));
}

PendingConnections::Position PendingConnections::drop(Position one) {
  last_dropped_ = process_text(one->pid);
  ++dropped_;
  log::warn(concat("init: ", last_dropped_, " connected and sent no hello"));
  return waiting_.erase(one);
}

}  // namespace lockstep::host
