#include "comm/host/socket_holder.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "core/process.h"
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
    // Num RefCount Protocol Flags Type St Inode Path; connections of a listener have its name too,
    // those that it has not taken yet without an inode.
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

ucred peer_of(int socket) {
  ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t length = sizeof peer;
  ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

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

}  // namespace lockstep::host
