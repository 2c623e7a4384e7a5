"""Who Lockstep is compared with, how each is started, and why one cannot be."""

import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent))

from pages import put_into, table  # noqa: E402, F401: for those who import this module

NEAR_NS = 200
# Variables that `lockstep run` sets for its ranks: glibc keeps freed memory.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "9223372036854775807",
               "MALLOC_TOP_PAD_": "67108864"}


class Failed(SystemExit):
    """A program ended with an error; says which and what it wrote. This program ends with it, too, unless it is caught."""


def run(command, environment=None):
    """The JSON objects that a command prints."""
    words = [str(word) for word in command]
    for _ in range(2):  # Gloo's threads now and then abort a process that has ended its work
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, **(environment or {})})
        if done.returncode == 0:
            break
    else:
        raise Failed(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Machine:
    """The state of the machine: whether its cores share a cache just now."""

    def __init__(self, build):
        self.command = [build / "bin" / "lockstep", "bench", "barrier", "-n", 2, "--repeats", 1, "--json"]
        self.last = self.probe_ns()

    def probe_ns(self):
        """A cache line's round trip between two cores, None where there is one core."""
        return run(self.command)[0]["probe_ns"]

    def around(self, measure):
        """What measure() gives, and the state before and after it."""
        before, found = self.last, measure()
        self.last = self.probe_ns()
        ends = [before, self.last]
        return found, {"probe_ns": ends, "state": state_of(*ends)}


def state_of(before, after):
    """near, far, or mixed when the cores moved in between; near where nothing can be told."""
    ends = {(probe or 0) < NEAR_NS for probe in (before, after)}
    return "mixed" if len(ends) == 2 else ("near" if ends.pop() else "far")


def spread(taken, digits):
    """The median, and the least and the largest."""
    return f"{statistics.median(taken):.{digits}f} ({min(taken):.{digits}f} to {max(taken):.{digits}f})"


def by_way(rows, field):
    """Each way's figures, in the order in which they were taken."""
    taken = {}
    for row in rows:
        taken.setdefault(row["way"], []).append(row[field])
    return taken


@dataclasses.dataclass
class Peer:
    """One way to do collectives."""

    name: str
    command: object  # (collective, ranks, bytes) -> words
    environment: dict = dataclasses.field(default_factory=dict)
    missing: str = ""  # why it cannot be started
    spins: bool = False  # a waiting rank keeps its core: no use with more ranks than cores

    def measure(self, collective, ranks, size):
        return run(self.command(collective, ranks, size), self.environment)


def collectives_of(build, python, intel):
    """Everyone who can do collectives; Lockstep first."""

    def sized(words, collective, size):
        sizes = ["--min", size, "--max", size] if size else []
        return [*words, collective, *sizes]

    def lockstep(collective, ranks, size):
        words = sized([build / "bin" / "lockstep", "bench"], collective, size)
        return [*words, "-n", ranks, "--json", *(["--stream"] if size >= 100_000_000 else [])]

    def mpi(launch, program, per_host=()):
        return lambda collective, ranks, size: sized(
            [*launch, *(word for option in per_host for word in (option, ranks)), "-n", ranks,
             build / "bin" / program], collective, size)

    def gloo(_, ranks, size):
        return [python, HERE / "gloo_bench.py", "--ranks", ranks, "--bytes", size]

    open_mpi = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    no_open_mpi = ""
    if not shutil.which("mpirun"):
        no_open_mpi = "mpirun is missing"
    elif not (build / "bin" / "bench_mpi").exists():
        no_open_mpi = "configured without LOCKSTEP_BUILD_PEERS or OpenMPI's headers"
    ring = ["--mca", "coll_tuned_use_dynamic_rules", 1, "--mca", "coll_tuned_allreduce_algorithm", 5,
            "--mca", "coll_tuned_allreduce_algorithm_segmentsize", 1 << 20]
    ucx = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]

    no_intel = ""
    if not (build / "bin" / "bench_oneccl").exists():
        no_intel = "tools/peers could not install it, or configured without LOCKSTEP_INTEL_PREFIX"

    def of_intel(program):
        # Untold, its launcher takes each rank for one of a host of its own here.
        return mpi([intel / "bin" / "mpirun"] if intel else [], program, ["-ppn"])

    shared = {"I_MPI_ROOT": str(intel), "I_MPI_FABRICS": "shm", "I_MPI_HYDRA_IFACE": "lo",
              "LD_LIBRARY_PATH": f"{intel}/lib"}
    ccl = {**shared, "CCL_ATL_TRANSPORT": "mpi", "CCL_KVS_IFACE": "lo", "CCL_LOG_LEVEL": "error",
           # A worker thread beside a rank that has the core would make each call wait for a time slice.
           "CCL_WORKER_OFFLOAD": "0"}

    return [
        Peer("Lockstep", lockstep),
        Peer("OpenMPI", mpi(open_mpi, "bench_mpi"), missing=no_open_mpi),
        Peer("OpenMPI, segmented ring", mpi([*open_mpi, *ring], "bench_mpi"), missing=no_open_mpi),
        Peer("OpenMPI, UCX", mpi([*open_mpi, *ucx], "bench_mpi"), missing=no_open_mpi),
        Peer("Intel MPI", of_intel("bench_intel_mpi"), shared, missing=no_intel),
        Peer("Intel MPI, ring", of_intel("bench_intel_mpi"),
             {**shared, "I_MPI_ADJUST_ALLREDUCE": "8"}, missing=no_intel),
        Peer("oneCCL", of_intel("bench_oneccl"), ccl, missing=no_intel, spins=True),
        Peer("oneCCL, nreduce", of_intel("bench_oneccl"),
             {**ccl, "CCL_ALLREDUCE": "nreduce"}, missing=no_intel, spins=True),
        Peer("PyTorch Gloo", gloo),
    ]


def say(text):
    print(text, file=sys.stderr, flush=True)
