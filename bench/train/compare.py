#!/usr/bin/env python3
"""Measures the training step of the MNIST CNN in every way that matters, and compares.

Two ranks against one, as processes and as threads, in turns within one run: one rank alone, both at
once without exchanging anything, both with a barrier after each step, and both in lockstep; page
faults of a step; and four ranks against two, run in turns. Needs nothing but Python and what `make build` makes.
"""

import argparse
import pathlib
import statistics
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))

from peers import run  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", type=pathlib.Path, help="build folder [build]")
    parser.add_argument("--rounds", default=7, type=int, help="rounds, and turns of 4 against 2 ranks [7]")
    parser.add_argument("--steps", default=20, type=int, help="steps a round [20]")
    parser.add_argument("--data", help="folder of MNIST [the sample]")
    options = parser.parse_args()

    lockstep = options.build / "bin" / "lockstep"
    program = options.build / "bin" / "bench_train_step"
    flags = ["--rounds", options.rounds, "--steps", options.steps]
    flags += ["--data", options.data] if options.data else []

    print("CNN, batch 64 a rank         alone    at once      paced   together  /alone  /paced  faults")
    for ways, command in (
        ("2 processes", [lockstep, "run", "-n", 2, program, *flags]),
        ("2 threads", [program, "--threads", 2, *flags]),
    ):
        r = run(command)[-1]
        print(f"{ways:22} {r['alone_ms']:8.2f} ms {r['at_once_ms']:7.2f} ms {r['paced_ms']:7.2f} ms "
              f"{r['together_ms']:7.2f} ms {r['ratio']:7.3f} {r['together_ms'] / r['paced_ms']:7.3f} "
              f"{r['faults_per_step']:7.2f}")

    short = ["--rounds", 3, "--steps", options.steps, "--no-alone", "--no-faults", *flags[4:]]
    times = {2: [], 4: []}
    for _ in range(options.rounds):
        for ranks in times:
            times[ranks].append(run([lockstep, "run", "-n", ranks, program, *short])[-1]["together_ms"])
    two, four = (statistics.median(times[ranks]) for ranks in (2, 4))
    print(f"\n4 processes against 2     {four:7.2f} ms {two:7.2f} ms {four / two:7.3f}")


if __name__ == "__main__":
    main()
