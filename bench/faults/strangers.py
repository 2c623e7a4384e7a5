"""Processes that connect to the ranks of a job on two simulated hosts while these join, and have not its token."""

import concurrent.futures
import contextlib
import dataclasses
import os
import random
import re
import resource
import socket
import subprocess
import threading
import time

import pages
from hosts import FIRST, SECOND, move_thread
from job import Disturbance, Job, folder_of
from processes import environment_of

RANKS = 3
LIMIT = 60  # seconds until rank 1 has connected, and from the attack to the job's end
PORT = 29533  # of rank 0 without a launcher
IPV4 = 0x0800
STARTERS = ["lockstep run", "variables"]
KINDS = ["rank 1 has another token", "another rank 1 with another token", "a port scanner", "a flood", "a replayed hello"]
OWN, OTHER, SCANNER, FLOOD, REPLAY = KINDS
REFUSED = re.compile(r"rank 1( of 3 on host .*|; refused .*)its token differs")
# A rank. Rank 2 starts after the attack.
PROGRAM = """#!/bin/sh
case ${{LOCKSTEP_RANK-$RANK}} in
1) {0} ;;
2) while [ ! -e {1}/attacked ]; do sleep 0.02; done ;;
esac
exec {2} --steps 20
"""
BY_HAND = f"""
RANK=0 "$1" & a=$!
RANK=1 "$1" & b=$!
RANK=2 "$0" {SECOND} "$1" & c=$!
status=0
for rank in $a $b $c; do wait $rank || status=$?; done
exit $status
"""


@dataclasses.dataclass(frozen=True)
class Stranger(Disturbance):
    launcher: str
    kind: str | None


class VisitedJob(Job):
    timeout = 15
    heartbeat = None

    def _command(self):
        for name in ("token", "other", "program"):
            (self.folder / name).write_text(name * 8)
            (self.folder / name).chmod(0o700 if name == "program" else 0o600)
        self.victim_program = self.options.build / "bin" / "bench_victim"
        other = f"export LOCKSTEP_TOKEN={'0' * 64} LOCKSTEP_TOKEN_FILE={self.folder}/other"
        program = self.folder / "program"
        program.write_text(PROGRAM.format(other if self.kill.kind == OWN else ":", self.folder, self.victim_program))
        words = [*self.hosts.enter(), "env", "LOCKSTEP_LOG=warn"]
        if self.kill.launcher == "variables":
            words += [f"WORLD_SIZE={RANKS}", f"MASTER_ADDR={FIRST}", f"MASTER_PORT={PORT}", f"LOCKSTEP_TOKEN_FILE={self.folder}/token"]
            return [*words, "sh", "-c", BY_HAND, self.hosts.run_arguments()[-1], program]
        return [*words, self.options.build / "bin" / "lockstep", "run", *self.hosts.run_arguments(), program]


def record_hello(packets):
    """The first long TCP payload: what rank 1 answers to rank 0's challenge."""
    while True:
        packet = packets.recv(1 << 16)
        tcp = packet[4 * (packet[0] & 15):int.from_bytes(packet[2:4], "big")]
        if packet[9] == socket.IPPROTO_TCP and len(payload := tcp[4 * (tcp[12] >> 4):]) > 500:
            return payload


def listening(host):
    """Ports that another host can reach."""
    found = subprocess.run(["ip", "netns", "exec", host, "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    places = [line.split()[3].rsplit(":", 1) for line in found.splitlines()]
    return [int(port) for address, port in places if address in ("*", "[::]", "0.0.0.0", FIRST)]


def intrude(job, port):
    """What is wrong about the end of a process that has another token; nothing when all is right."""
    variables = {"RANK": "1", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": FIRST, "MASTER_PORT": str(port), "LOCKSTEP_TIMEOUT": "2",
                 "LOCKSTEP_TOKEN_FILE": str(job.folder / "other")}
    done = subprocess.run([job.victim_program], env={**os.environ, **variables}, check=False, capture_output=True, text=True, timeout=LIMIT)
    named = done.returncode == 1 and REFUSED.search(done.stderr)
    return None if named else f"the process with another token ended with {done.returncode}: {done.stderr}"


def attack(job, kept):
    """Starts the job, and attacks from the second host. What is wrong, and how often it connected; keeps the connections."""
    move_thread(job.hosts.name(1))
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV4)) as packets:
        packets.bind(("lo", IPV4))
        packets.settimeout(LIMIT)
        job.start()
        hello = record_hello(packets)
    move_thread(job.hosts.name(2))
    rank = next(process.pid for process in job.processes() if process.name == "bench_victim")  # rank 0 or 1
    rng = random.Random(1)
    scan = [b"", b"GET / HTTP/1.1\r\n\r\n", hello[:40], *(rng.randbytes(rng.randrange(1, 2000)) for _ in range(20))]
    problem = None
    if job.kill.kind == OTHER:
        problem = intrude(job, environment_of(rank).get("LOCKSTEP_MASTER", f":{PORT}").split(":")[1])
    for port in listening(job.hosts.name(1)):
        for data in {SCANNER: scan, FLOOD: [b""] * 1000, REPLAY: [hello] * 20}.get(job.kill.kind, []):
            kept.append(socket.create_connection((FIRST, port), 10))
            with contextlib.suppress(ConnectionError):
                kept[-1].sendall(data)
    (job.folder / "attacked").touch()
    return problem, len(kept)


_undisturbed = {}
_undisturbed_lock = threading.Lock()


def wrong_end(job, code, connections):
    digests = job.lines("done")
    if job.kill.kind == OWN:
        return None if code and REFUSED.search(job.err) else f"exit code {code}, expected another, and a line that names rank 1 and its token"
    expected = {rank: _undisturbed.get("digest", digests.get(0)) for rank in range(RANKS)}
    if code != 0 or digests != expected:
        return f"exit code {code} and results {digests}, expected 0 and {expected}"
    if connections and not re.search(rf"refused \S*{SECOND}", job.err):
        return "no line says that a connection was refused"
    _undisturbed["digest"] = digests[0]
    return None


def run_case(case, options, hosts):
    """The outcome of a job that is attacked, as a row of the table."""
    if case.kind:
        with _undisturbed_lock:  # else two jobs would share its folder
            row = {"problem": None} if _undisturbed else run_case(Stranger(case.launcher, None), options, hosts)
        if row["problem"]:
            return row | {"case": case}
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    job, kept, connections = VisitedJob(case, options, folder_of(options, case.name), hosts), [], 0
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # one that may stay on a simulated host
        try:
            problem, connections = thread.submit(attack, job, kept).result()
        except (OSError, StopIteration, subprocess.TimeoutExpired) as error:
            problem = f"the attack failed: {error!r}"
    code = job.wait(time.monotonic() + LIMIT)
    left = job.processes()
    job.end()
    for connection in kept:
        connection.close()
    problem = problem or (f"exit code {code}, {len(left)} processes were left" if code is None or left else wrong_end(job, code, connections))
    shown = "named" if case.kind == OWN else "goes on" + f" ({connections})" * (connections > 0)
    return job.row(problem, shown=shown)


def table(rows):
    cells = {(row["case"].kind, row["case"].launcher): "**wrong**" if row["problem"] else row["shown"] for row in rows}
    return pages.table(["what happens", *STARTERS], *([kind, *(cells[kind, one] for one in STARTERS)]
                                                      for kind in dict.fromkeys(kind for kind, _ in cells)))
