"""The start of a job of two ranks that does one all_reduce and ends: Lockstep's and torchrun's."""

import statistics
import time

from peers import HERE, by_way, run, spread, table

REPEATS = 3  # a turn


def measure(options, machine, turn):
    ways = {
        "lockstep run": [options.build / "bin" / "lockstep", "run", "-n", 2,
                         options.build / "bin" / "bench_start"],
        "torchrun": [options.python, "-m", "torch.distributed.run", "--nproc-per-node", 2,
                     HERE / "torch_start.py"],
    }
    for way, command in ways.items():
        for _ in range(REPEATS):
            ms, around = machine.around(lambda: duration_ms(command))
            yield {"turn": turn, "way": way, "ms": ms, **around}


def duration_ms(command):
    begin = time.perf_counter()
    run(command, {"OMP_NUM_THREADS": "1"})
    return 1000 * (time.perf_counter() - begin)


def report(rows):
    times = by_way(rows, "ms")
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    return table(["start, one all_reduce, end", "ms", "over Lockstep"],
                 *([way, spread(taken, 0), f"{medians[way] / medians['lockstep run']:.1f}"] for way, taken in times.items()))
