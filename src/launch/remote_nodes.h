#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// A host of --hosts or --hostfile, and its number of ranks.
struct HostRanks {
  std::string name;
  int ranks = 0;
};

/// The hosts in "a:2,b:2", or in the lines "a:2" and "a slots=2" of a file, where '#' begins a
/// comment. named_by is the option, for error texts.
/// Throws: InvalidArgument for another form, for no host, and if the first one is not this host.
std::vector<HostRanks> parse_hosts(std::string text, std::string_view named_by);

/// This launcher's place among the hosts: node 0, on a free port and with a new token.
NodePlace first_of(const std::vector<HostRanks>& hosts);

/// The description of a job, which RemoteNodes sends to the other hosts.
struct RemoteOptions {
  std::string ssh;                    ///< command, to which the host and a shell command are added
  std::string lockstep = {};          ///< path of the lockstep program on the other hosts
  std::vector<std::string> run = {};  ///< options of `lockstep run` for all hosts
  /// NAME or NAME=VALUE, in addition to LOCKSTEP_*, OMP_* and LD_LIBRARY_PATH.
  std::vector<std::string> exports = {};
};

/// Launchers on other hosts, started by ssh. Each ends its ranks when its stdin ends, as it does
/// when ssh or this process ends.
class RemoteNodes {
 public:
  /// Starts the launchers of all hosts but the first, as nodes 1, 2, … of the job of `options`.
  /// Their environment and the token are sent to their stdin, where no other user sees them.
  /// Throws: CommError if the system refuses processes or descriptors.
  RemoteNodes(const std::vector<HostRanks>& hosts, const RemoteOptions& remote,
              const Options& options);
  /// Waits up to 5 s for the ends of the launchers, then ends ssh.
  ~RemoteNodes();
  RemoteNodes(const RemoteNodes&) = delete;
  RemoteNodes& operator=(const RemoteNodes&) = delete;

  /// Throws: CommError naming a host whose ssh has ended.
  void check() const;

 private:
  struct Remote {
    std::string host;
    pid_t ssh = -1;
    Descriptor in;
  };
  std::vector<Remote> remotes_;
};

/// Becomes the launcher that RemoteNodes describes on stdin. From then on, the end of stdin ends
/// the job as SIGTERM does.
/// Throws: InvalidArgument if stdin has no description, or names a folder that this host lacks.
[[noreturn]] void become_remote_node();
/// Sends SIGTERM to this process when its stdin ends, and again every second.
void end_with_stdin();

}  // namespace lockstep::launch
