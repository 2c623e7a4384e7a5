#pragma once

#include "lockstep/launch/plan.h"

namespace lockstep::launch {

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
/// A restart: one line on stderr names the first cause instead. There is none after a signal that
/// asked the launcher to end, nor after a reader of its output that has gone.
///
/// Output that cannot be written, as on a full disk, is lost, and the job goes on; a last line on
/// stderr says what was lost and why, and an exit code of 0 becomes 1. A reader of the launcher's
/// output that has gone ends the job with 128 + SIGPIPE.
///
/// Returns the exit code of the last attempt: 0 when every rank exited 0, else that of the first
/// cause (128 + signal for a signal, 1 for a rank that left early with 0), or 128 + signal when the
/// launcher itself was interrupted. Meant for a program of one thread: it handles SIGCHLD, SIGINT,
/// SIGTERM, SIGHUP, SIGTSTP, SIGCONT and SIGWINCH while it runs, and orphans of its descendants
/// become its children. Throws: InvalidArgument for log files that cannot be written or a program
/// that cannot be executed, CommError when the machine refuses memory, processes or descriptors. No
/// rank is left running then.
int run(const Plan& plan);

}  // namespace lockstep::launch
