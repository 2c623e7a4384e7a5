"""Processes of jobs, found by a marker in their environment."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import threading

MARKER = "LOCKSTEP_RANDOM_KILL"


@dataclasses.dataclass
class Process:
    pid: int
    parent: int
    name: str
    rank: int | None  # of a process with a launcher's variables


def state_of(pid):
    """State, parent and name; nothing for a process that has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:].rsplit(")", 1)
    state, parent = rest.split()[:2]
    return None if state in "ZX" else (state, int(parent), name)


def words_of(pid, file):
    """The words of /proc/PID/cmdline or /proc/PID/environ; none of a process that has ended."""
    try:
        words = pathlib.Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode(errors="replace") for word in words]


def environment_of(pid):
    return dict(word.split("=", 1) for word in words_of(pid, "environ") if "=" in word)


class Scanner:
    """Finds the processes of all jobs. A process without the marker never gets it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._foreign = set()

    def of(self, marker):
        with self._lock:
            pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
            self._foreign &= pids
            found = []
            for pid in sorted(pids - self._foreign):
                environment = environment_of(pid)
                if environment and MARKER not in environment:
                    self._foreign.add(pid)
                state = state_of(pid) if environment.get(MARKER) == marker else None
                if state:
                    rank = environment.get("LOCKSTEP_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
                    found.append(Process(pid, state[1], state[2], None if rank is None else int(rank)))
            return found


def send(pid, name, marker):
    """Signals a process of this job, and no other that has got its number. Whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        file = os.pidfd_open(pid)
        try:
            if environment_of(pid).get(MARKER) != marker or state_of(pid) is None:
                return False
            signal.pidfd_send_signal(file, signal.Signals[f"SIG{name}"])
            return True
        finally:
            os.close(file)
    return False
