#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <string>
#include <string_view>

namespace lockstep::inline v0_2::host {

/// The process at the other end of a connected unix socket, as the kernel knows it; pid 0 where it
/// is of another pid namespace.
ucred peer_of(int socket);

/// "process 77 (train)", for messages.
std::string process_text(pid_t pid);

/// The process that holds the abstract unix address of this name, whether it listens there or not:
/// as process_text(), or "a process that cannot be seen from here".
std::string holder_of(std::string_view name);

}  // namespace lockstep::host
