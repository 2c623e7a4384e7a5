"""Two simulated hosts, made by tools/two-hosts and kept for several jobs."""

import concurrent.futures
import contextlib
import ctypes
import os
import pathlib
import queue
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NO_NAMESPACES = 77
FIRST, SECOND = "10.77.0.1", "10.77.0.2"  # the addresses that tools/two-hosts gives
# In place of mpirun: writes its process and what mpirun would get, and keeps the hosts.
HOLD = """#!/bin/sh
printf '%s\\n' $$ "$@" >"$0.new" && mv "$0.new" "$0.arguments"
exec cat
"""


class Unavailable(Exception):
    pass


def move_thread(host):
    """From now on, this thread's sockets are on the simulated host of that name."""
    with open(f"/run/netns/{host}") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class TwoHosts:
    def __init__(self, folder):
        hold = folder / "hold"
        hold.write_text(HOLD)
        hold.chmod(0o755)
        arguments = folder / "hold.arguments"
        self._keeper = subprocess.Popen(
            [ROOT / "tools" / "two-hosts", "--rate", "1gbit", "--per-host", "2", "--mpirun", hold, "true"],
            env={**os.environ, "TMPDIR": str(folder)},  # jobs have a /tmp of their own
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not arguments.exists():
            if self._keeper.poll() is not None:
                raise Unavailable(self._keeper.stderr.read().strip())
            time.sleep(0.02)
        process, *words = arguments.read_text().splitlines()
        self._process = process
        self._agent = words[words.index("plm_rsh_agent") + 1]

    def name(self, number):
        """Of host 1, which starts jobs, or 2."""
        return f"lockstep{self._keeper.pid}-{number}"

    def run_arguments(self):
        """The arguments of `lockstep run` for two ranks on the first host and one on the second."""
        return ["--hosts", f"{FIRST}:2,{SECOND}:1", "--ssh", self._agent]

    def enter(self):
        """The words before a command that is to run on the first host."""
        return ["nsenter", "--target", self._process, "--net", "--uts"]

    def cut_link(self, cut=True):
        subprocess.run(["ip", "-n", self.name(1), "link", "set", "link0", "down" if cut else "up"], check=True)

    def close(self):
        self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(30)


def hosts_for(options, chosen, name):
    """As many pairs of simulated hosts as there are jobs at a time, for that one of the chosen. If they cannot be made here, it is
    said and left out."""
    pairs = []
    try:
        for number in range(options.jobs if name in chosen else 0):
            folder = options.work / f"hosts-{number}"
            folder.mkdir(parents=True)
            pairs.append(TwoHosts(folder))
    except Unavailable as error:
        print(f"left out: {name}: {error}")
        chosen.remove(name)
        close_all(pairs)
        return []
    return pairs


def close_all(pairs):
    for pair in pairs:
        pair.close()


def run_all(cases, options, pairs, needs_hosts, run_case):
    """The rows of all cases as they end, several jobs at a time. A case that needs hosts has a pair of them alone."""
    free = queue.SimpleQueue()
    for pair in pairs:
        free.put(pair)

    def one(case):
        pair = free.get() if needs_hosts(case) else None
        try:
            return run_case(case, options, pair)
        finally:
            if pair:
                free.put(pair)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(one, case) for case in cases]
        try:
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
