#pragma once

#include "launch/plan.h"
#include "launch/remote_nodes.h"

namespace lockstep::inline v0_2::launch {

/// Starts every rank of the plan as a process, supervises the ranks, and returns when no rank and
/// no descendant of a rank runs. After a failure, starts the whole world again, as often as the
/// plan allows, with new memory, processes and guardian.
///
/// Output: rank 0's output is passed on unchanged. Output of other ranks is written line by line,
/// prefixed by "[rank] ". If the launcher's own output is a terminal, rank 0's output is a
/// pseudo-terminal. Input: rank 0 reads the launcher's stdin unless that is a terminal, which a
/// background process group may not read. Other ranks read /dev/null.
///
/// When a rank fails, the other ranks are ended: SIGTERM, the grace time, then SIGKILL, each to the
/// rank's process group. A last paragraph on stderr names the first cause. A signal that interrupts
/// the launcher is sent to the ranks; a second one kills them.
///
/// SIGUSR1 and SIGUSR2 are forwarded to the ranks' process groups, unless the plan says otherwise.
/// A signal that arrives while ranks start or a restart is pending is forwarded when each rank has
/// joined the world, or handles, ignores or blocks it.
///
/// Before a restart, one line on stderr names the first cause and the delay. There is no restart
/// after a signal that asked the launcher to end, after the reader of its output has closed it, or
/// if SIGKILL did not end all processes of the last attempt.
///
/// Output that cannot be written, for example on a full disk, is lost, and the job continues. A
/// last line on stderr then names the lost output and its causes, and an exit code of 0 becomes 1.
/// If the reader of the launcher's output closes it, the job ends with 128 + SIGPIPE.
///
/// A reader that reads nothing blocks the ranks' output, never the launcher. After a successful
/// job, the launcher waits until its output is read. After a failure it discards the output when
/// the reader has read nothing for 60 s, and after a signal for 2 s. A signal during that wait
/// discards the output at once.
///
/// No other job may use the log folder at the same time.
///
/// Returns the exit code of the last attempt: 0 if every rank exited with 0, else the exit code of
/// the first cause; 128 + signal for a signal, and 1 for a rank that left early with 0. If a signal
/// ended the launcher, 128 + signal.
///
/// For a program with one thread, or others that take no locks. During the call, it handles
/// SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH, SIGUSR1, SIGUSR2 and SIGALRM, and
/// orphaned descendants become children of this process.
///
/// Throws: InvalidArgument for log files that cannot be written or a program that cannot be
/// executed. CommError if the system refuses memory, processes or descriptors. No rank runs then.
///
/// remote: the launchers of the other nodes, if this one has started them.
int run(const Plan& plan, RemoteNodes* remote = nullptr);

}  // namespace lockstep::launch
