"""The start of a job of two ranks that does one all_reduce and ends: Lockstep's and torchrun's."""

import statistics
import time

from peers import HERE, run, state_of

REPEATS = 3  # a turn


def measure(options, machine, turn):
    ways = {
        "lockstep run": [options.build / "bin" / "lockstep", "run", "-n", 2,
                         options.build / "bin" / "bench_start"],
        "torchrun": [options.python, "-m", "torch.distributed.run", "--nproc-per-node", 2,
                     HERE / "torch_start.py"],
    }
    before = machine.probe_ns()
    for way, command in ways.items():
        for _ in range(REPEATS):
            begin = time.perf_counter()
            run(command, {"OMP_NUM_THREADS": "1"})
            ms = 1000 * (time.perf_counter() - begin)
            after = machine.probe_ns()
            yield {"turn": turn, "way": way, "ms": ms, "probe_ns": [before, after],
                   "state": state_of(before, after)}
            before = after


def report(rows):
    times = {}
    for row in rows:
        times.setdefault(row["way"], []).append(row["ms"])
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    lines = ["| start, one all_reduce, end | ms | over Lockstep |", "|---|---|---|"]
    for way, taken in times.items():
        lines.append(f"| {way} | {medians[way]:.0f} ({min(taken):.0f} to {max(taken):.0f})"
                     f" | {medians[way] / medians['lockstep run']:.1f} |")
    return "\n".join(lines) + "\n"
