"""Whether a job that was disturbed ended as it should, and named the right cause."""

import re
import signal

FAILED = re.compile(r"rank (\d+) of \d+ failed first: it (.*?) \(host \S+, pid (\d+)\)")
ENDED_BY = re.compile(r"was ended by (SIG\w+)")
# An error that bench_victim printed, behind the prefix of the launcher.
ERROR = re.compile(r"^(?:\[\d+(?: \S+)?\] |\[[^]]*\]<stderr>: ?)?error: (.*)$", re.M)
# Errors that ranks may raise while their launcher ends the job.
OF_LAUNCHER = re.compile(r"launcher of the ranks|has ended|left the world|ended with SIG|ended while|has still to")


def may_end_later(kill):
    """Whether processes may end after the launcher: it was killed, has lost a host, or is OpenMPI's."""
    return kill.launcher != "run" or kill.mode == "two-hosts" or kill.victim in ("launcher", "launcher and guardian")


def wrong_cause(job, victims, code, digest):
    """What is wrong about exit code, messages and results; nothing when all is right."""
    kill = job.kill
    digests = job.lines("done")
    complete = len(digests) == kill.ranks and set(digests.values()) == {digest}
    if code == 0 and not complete:
        return f"exit code 0 without all results: {digests}"
    if kill.harmless:
        return _undisturbed(job, victims, code)
    # If all ranks have joined once, the victim had nothing left to do: a rank, or the child of one that had ended.
    if code == 0 and "failed first" not in job.err and job.starts() == kill.ranks:
        return None
    if kill.victim in ("launcher", "launcher and guardian"):
        return _launcher_ended(job, code)
    if kill.victim in ("other launcher", "link"):
        return _host_lost(job, code)
    if kill.launcher == "run":
        return _rank_named(job, victims, code)
    return _named_by_ranks(job, victims, code)


def _undisturbed(job, victims, code):
    kill = job.kill
    if code != 0 or "failed first" in job.err:
        return f"exit code {code}, expected an undisturbed job"
    replaced = f"the guardian process (pid {victims[0].pid})" in job.err
    expected = kill.victim == "guardian" and kill.signal == signal.SIGKILL and kill.phase != "done"
    # The launcher itself ends the guardian when the ranks have ended: they had where the job ended at once.
    if expected and not replaced and kill.phase == "start" and job.seconds_after_kill > 0.1:
        return "the guardian's death is not named"
    return None


def _launcher_ended(job, code):
    kill, number = job.kill, job.kill.signal
    # The launcher of another host names node 0.
    if re.search(r"\brank \d+ of \d+ failed first", job.err):
        return f"a rank is named, expected {number.name} of the launcher"
    if kill.launcher == "run":
        if code not in (-number, 128 + number):
            return f"exit code {code}, expected {128 + number} or death by {number.name}"
        if code > 0 and f"lockstep: ended by {number.name}" not in job.err:
            return f"no line 'ended by {number.name}'"
    elif code == 0:
        return "exit code 0, expected another"
    for line in ERROR.findall(job.err):
        if not OF_LAUNCHER.search(line):
            return f"a rank says: {line}"
    return None


def _rank_named(job, victims, code):
    """Of `lockstep run`: the last paragraph, or the line of a restart, and what the other ranks say."""
    kill = job.kill
    named = FAILED.findall(job.err)
    if not named:
        return f"exit code {code}, and no rank is named; stderr ends: {job.err[-300:]!r}"
    rank, what, pid = named[0]
    if int(pid) not in [victim.pid for victim in victims]:
        return f"rank {rank} (pid {pid}) is named, expected pid {[victim.pid for victim in victims]}"
    by = ENDED_BY.match(what)
    if not by or by.group(1) != kill.signal.name:
        return f"rank {rank} {what}, expected that {kill.signal.name} ended it"
    expected = 0 if kill.mode == "restart" else 128 + kill.signal
    if code != expected:
        return f"exit code {code}, expected {expected}"
    if kill.mode == "restart" and len(named) != 1:
        return f"{len(named)} restarts, expected one"
    ranks = {victim.rank for victim in victims if victim.rank is not None} | {int(rank)}
    return _errors_name(job, ranks)


def _named_by_ranks(job, victims, code):
    """Of OpenMPI's mpirun: what it and the ranks say."""
    if code == 0:
        return "exit code 0, expected another"
    ranks = {victim.rank for victim in victims}
    # OpenMPI 5 breaks the line.
    line = r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)".replace(" ", r"\s+")
    noticed = re.findall(line, job.err)
    named = any(int(rank) in ranks and int(by) == job.kill.signal for rank, by in noticed)
    if not named and not ERROR.search(job.err):
        return f"nobody names ranks {sorted(ranks)}"
    return _errors_name(job, ranks)


def _host_lost(job, code):
    """Of `lockstep run` on two hosts, whose second launcher has ended or cannot be reached."""
    kill, number = job.kill, job.kill.signal
    if kill.victim == "other launcher" and number in (signal.SIGTERM, signal.SIGINT):
        # Before it watches signals, it ends by them.
        if code == 128 + number and f"lockstep: ended by {number.name}" in job.err:
            return None
    if code == 0:
        return "exit code 0, expected another"
    host = job.hosts.name(2)
    if kill.victim == "link":
        lost = "no heartbeat from" in job.err or "did not reach" in job.err or "waited" in job.err
    else:
        lost = re.search(rf"its launcher has ended \(host {host}\)|run: host \S+: ssh or the launcher there ended", job.err)
    return None if lost else f"no line names the launcher of host {host}"


def _errors_name(job, ranks):
    for line in ERROR.findall(job.err):
        said = re.sub(r"^.*?\brank \d+ of \d+: ", "", line, count=1)
        if not any(re.search(rf"\brank {rank}\b", said) for rank in ranks):
            return f"a rank says: {line}; expected one of ranks {sorted(ranks)}"
    return None
