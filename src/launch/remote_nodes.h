#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/job/console.h"
#include "launch/job/failure_report.h"
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
/// Throws: InvalidArgument for another form.
std::vector<HostRanks> parse_hosts(const std::string& text, std::string_view named_by);

/// This launcher's place among the hosts: node 0, on a free port and with a new token.
/// Throws: InvalidArgument for no host, and if the first one is not this host.
NodePlace first_of(const std::vector<HostRanks>& hosts, std::string_view named_by);

/// The description of a job, which RemoteNodes sends to the other hosts.
struct RemoteOptions {
  std::string ssh;                    ///< command, to which the host and a shell command are added
  std::string lockstep = {};          ///< path of the lockstep program on the other hosts
  std::vector<std::string> run = {};  ///< options of `lockstep run` for all hosts
  /// NAME or NAME=VALUE, in addition to LOCKSTEP_*, OMP_* and LD_LIBRARY_PATH.
  std::vector<std::string> exports = {};
  Variables environment = {};         ///< of ssh
  std::deque<HostRanks> spares = {};  ///< replace hosts whose launchers have ended, in this order
};

/// Launchers on other hosts, started by ssh. Each ends its ranks when its stdin ends, as it does
/// when ssh or this process ends.
class RemoteNodes {
 public:
  /// Starts the launchers of all hosts but the first, as nodes 1, 2, … of the job of `options`.
  /// Their environment and the token are sent to their stdin, where no other user sees them.
  /// Throws: CommError if the system refuses processes or descriptors.
  RemoteNodes(const std::vector<HostRanks>& hosts, RemoteOptions remote, const Options& options);
  /// Waits up to 5 s for the ends of the launchers that await_ends() has not awaited.
  ~RemoteNodes();
  RemoteNodes(const RemoteNodes&) = delete;
  RemoteNodes& operator=(const RemoteNodes&) = delete;

  /// While the launchers join. Starts the next spare in place of a host whose ssh has ended.
  /// Returns the number of nodes that run, this one included.
  /// Throws: CommError naming that host if no spare is left and too few nodes run.
  int check(Console& console);
  const std::string& host(int node) const {
    return remotes_[static_cast<std::size_t>(node) - 1].host;
  }
  /// Ends the launchers, which have not all joined.
  void end_joining();
  /// After the job: waits until ssh to all hosts has ended, as it may still write output. After
  /// `patience`, at least 5 s, or 5 s after a signal that asks the launcher to end, it kills ssh.
  /// Each ssh that it kills, or that fails after a job without a failure, is one of the losses.
  void await_ends(const Outcome& outcome, Console::Patience patience, Console& console);
  /// Ends ssh to these nodes, as they are lost.
  void drop(std::span<const int> numbers);

 private:
  struct Remote {
    std::string host;
    std::string end = {};  ///< why it is not used any more
    pid_t ssh = -1;
    Descriptor in = {};
  };
  void start(std::size_t node, const HostRanks& host, const std::function<void()>& in_child);

  RemoteOptions options_;
  Options job_;
  std::vector<Remote> remotes_;  ///< that of node k at k - 1
};

/// Becomes the launcher that RemoteNodes describes on stdin. From then on, the end of stdin ends
/// the job as SIGTERM does.
/// Throws: InvalidArgument if stdin has no description, or names a folder that this host lacks.
[[noreturn]] void become_remote_node();

}  // namespace lockstep::launch
