#!/usr/bin/env python3
"""Times what the launcher adds: two ranks under `lockstep run`, and the same program alone twice at once.

Both in turns within one run; prints medians in milliseconds and the difference.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", type=pathlib.Path, help="build folder [build]")
    parser.add_argument("--rounds", default=15, type=int, help="turns [15]")
    options = parser.parse_args()
    program = options.build / "bin" / "bench_start"
    ways = {
        "lockstep run -n 2": [[options.build / "bin" / "lockstep", "run", "-n", "2", program]],
        "alone, twice at once": [[program], [program]],
    }

    times = {way: [] for way in ways}
    for turn in range(options.rounds + 1):
        for way, commands in ways.items():
            begin = time.perf_counter()
            running = [subprocess.Popen(command) for command in commands]
            if any(process.wait() for process in running):
                sys.exit(f"{way}: failed")
            if turn > 0:  # the first warms up
                times[way].append((time.perf_counter() - begin) * 1000)
    medians = [statistics.median(taken) for taken in times.values()]
    for (way, taken), median in zip(times.items(), medians):
        print(f"{way:22} {median:7.1f} ms   ({min(taken):.1f} to {max(taken):.1f})")
    print(f"{'the launcher adds':22} {medians[0] - medians[1]:7.1f} ms")


if __name__ == "__main__":
    main()
