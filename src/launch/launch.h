#pragma once

#include "launch/plan.h"

namespace lockstep::inline v0_2::launch {

/// Starts every rank of the plan as a process, supervises them, and returns when none of them and
/// none of their children is left. As often as the plan allows, a world that failed is started
/// again, new in all: memory, processes, guardian.
///
/// Output: rank 0's passes through; that of others comes line by line, prefixed by "[rank] ". Where
/// the launcher's own output is a terminal, rank 0 sees a terminal too. Input: rank 0 reads the
/// launcher's stdin unless that is a terminal, which a background process group may not read;
/// other ranks read nothing.
///
/// When a rank fails, the rest are stopped (SIGTERM, grace, SIGKILL, each to the rank's whole
/// process group) and a last paragraph on stderr names the first cause. An interrupt of the
/// launcher is passed on; a second one kills.
///
/// A restart: one line on stderr names the first cause and the delay instead. There is none after a
/// signal that asked the launcher to end, nor after a reader of its output that has gone. There is
/// none either when SIGKILL did not end all processes of the last attempt.
///
/// Output that cannot be written, as on a full disk, is lost, and the job goes on. A last line on
/// stderr then names the losses and their causes, and an exit code of 0 becomes 1. When the reader
/// of the launcher's output has gone, the job ends with 128 + SIGPIPE.
///
/// A reader that takes nothing holds up the ranks' output, never the launcher. The output of a job
/// that went well waits for its reader. After a failure it is given up once the reader has taken
/// nothing for 60 s, and after a signal for 2 s. A signal during that wait gives it up at once.
///
/// No other job may use its log folder at the same time.
///
/// Returns the exit code of the last attempt: 0 when every rank exited 0, else that of the first
/// cause. A signal gives 128 + signal, and a rank that left early with 0 gives 1. When the launcher
/// itself was interrupted, the code is 128 + signal.
///
/// Meant for a program of one thread. While it runs, it handles SIGCHLD, SIGINT, SIGTERM, SIGHUP,
/// SIGTSTP, SIGCONT, SIGWINCH and SIGALRM, and orphans of its descendants become its children.
///
/// Throws: InvalidArgument for log files that cannot be written or a program that cannot be
/// executed, CommError when the machine refuses memory, processes or descriptors. No rank is left
/// running then.
int run(const Plan& plan);

}  // namespace lockstep::launch
