"""Whether a job that was disturbed ended as it should, and named the right cause."""

import re
import signal

FAILED = re.compile(r"rank (\d+) of \d+ failed first: it (.*?) \(host \S+, pid (\d+)\)")
ENDED_BY = re.compile(r"was ended by (SIG\w+)")
# An error that bench_victim printed, behind the prefix of the launcher.
ERROR = re.compile(r"^(?:\[\d+\] |\[[^]]*\]<stderr>: ?)?error: (.*)$", re.M)
# Errors that ranks may raise while their launcher ends the job.
OF_LAUNCHER = re.compile(r"launcher of the ranks|has ended|left the world|ended with SIG|ended while|has still to")


def may_end_later(kill):
    """Whether processes may end after the launcher: it was killed, or it is OpenMPI's."""
    return kill.launcher != "run" or kill.victim in ("launcher", "launcher and guardian")


def wrong_cause(job, victims, code, digest):
    """What is wrong about exit code, messages and results; nothing when all is right."""
    kill = job.kill
    digests = job.lines("done")
    complete = len(digests) == kill.ranks and set(digests.values()) == {digest}
    if code == 0 and not complete:
        return f"exit code 0 without all results: {digests}"
    if kill.harmless:
        return _undisturbed(job, victims, code)
    if code == 0 and "failed first" not in job.err and _was_on_its_way_out(job, victims):
        return None
    if kill.victim in ("launcher", "launcher and guardian"):
        return _launcher_ended(job, code)
    if kill.launcher == "run":
        return _rank_named(job, victims, code)
    return _named_by_ranks(job, victims, code)


def _was_on_its_way_out(job, victims):
    """Whether the victims printed their last lines: all ranks did, and none was started again."""
    joined = job.lines("pid")
    return job.starts() == job.kill.ranks and all(
        victim.rank is None or joined.get(victim.rank) == str(victim.pid) for victim in victims)


def _undisturbed(job, victims, code):
    kill = job.kill
    if code != 0 or "failed first" in job.err:
        return f"exit code {code}, expected an undisturbed job"
    replaced = f"the guardian process (pid {victims[0].pid})" in job.err
    expected = kill.victim == "guardian" and kill.signal == "KILL" and kill.phase != "done"
    # The launcher itself ends the guardian when the ranks have ended: they had where the job ended at once.
    if expected and not replaced and kill.phase == "start" and job.seconds_after_kill > 0.1:
        return "the guardian's death is not named"
    return None


def _launcher_ended(job, code):
    kill = job.kill
    number = signal.Signals[f"SIG{kill.signal}"]
    if "failed first" in job.err:
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
    name = f"SIG{kill.signal}"
    named = FAILED.findall(job.err)
    if not named:
        return "no rank is named"
    rank, what, pid = named[0]
    if int(pid) not in [victim.pid for victim in victims]:
        return f"rank {rank} (pid {pid}) is named, expected pid {[victim.pid for victim in victims]}"
    by = ENDED_BY.match(what)
    if not by or by.group(1) != name:
        return f"rank {rank} {what}, expected that {name} ended it"
    expected = 0 if kill.mode == "restart" else 128 + signal.Signals[name]
    if code != expected:
        return f"exit code {code}, expected {expected}"
    if kill.mode == "restart" and len(named) != 1:
        return f"{len(named)} restarts, expected one"
    ranks = {victim.rank for victim in victims if victim.rank is not None} | {int(rank)}
    return _errors_name(job, ranks)


def _named_by_ranks(job, victims, code):
    """Of OpenMPI's mpirun: what it and the ranks say."""
    kill = job.kill
    if code == 0:
        return "exit code 0, expected another"
    if kill.victim == "link":
        lines = ERROR.findall(job.err)
        silent = [line for line in lines if "no heartbeat from" not in line and "link" not in line]
        return f"a rank says: {silent[0]}" if silent and kill.phase != "start" else None
    if kill.victim in ("mpirun", "daemon"):
        wrong = [line for line in ERROR.findall(job.err) if not OF_LAUNCHER.search(line)]
        return f"a rank says: {wrong[0]}" if wrong else None
    ranks = {victim.rank for victim in victims}
    number = signal.Signals[f"SIG{kill.signal}"]
    noticed = re.findall(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)", job.err)
    named = any(int(rank) in ranks and int(by) == number for rank, by in noticed)
    # mpirun may miss it when all ranks of both hosts end at once. No rank is left that could say it.
    silent = len(ranks) == kill.ranks and "Ranks without output may have been ended by a signal" in job.err
    if not named and not silent and not ERROR.search(job.err):
        return f"nobody names ranks {sorted(ranks)}"
    return _errors_name(job, ranks)


def _errors_name(job, ranks):
    for line in ERROR.findall(job.err):
        said = re.sub(r"^.*?\brank \d+ of \d+: ", "", line, count=1)
        if not any(re.search(rf"\brank {rank}\b", said) for rank in ranks):
            return f"a rank says: {line}; expected one of ranks {sorted(ranks)}"
    return None
