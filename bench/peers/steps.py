#!/usr/bin/env python3
"""Training steps of Lockstep and of PyTorch in turns within one run, and the ratios of their medians.

PyTorch's DistributedDataParallel over Gloo as it is shipped; at its best (bucket views, static graph,
fused SGD, and glibc told to keep freed memory); and one process with two threads on the same global
batch. Lockstep runs under its launcher with default settings.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

# What lockstep run sets for its ranks.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "9223372036854775807",
        "MALLOC_TOP_PAD_": "67108864"}
# Steps a round, so that a round takes about a second.
STEPS = {"cnn": 30, "mlp": 5, "resnet9": 3}
BATCH = {"cnn": 64, "mlp": 16, "resnet9": 16}
HERE = pathlib.Path(__file__).resolve().parent


def run(command, environment):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def ways_of(model, options):
    """Name, command, environment, and where the time is in what the command prints."""
    lockstep = options.build / "bin" / "lockstep"
    step = options.build / "bin" / "bench_train_step"
    length = ["--rounds", 3, "--steps", STEPS[model]]
    ours = [step, "--model", model, *length, "--no-alone", "--no-faults"]
    theirs = [options.python, HERE / "torch_step.py", "--model", model, *length]
    one_process = ["--ranks", 1, "--threads", 2, "--batch-size", 2 * BATCH[model]]
    return {
        "Lockstep, 2 ranks": ([lockstep, "run", "-n", 2, *ours], {}, "together_ms"),
        "PyTorch DDP as shipped": (theirs, {}, "step_ms"),
        "PyTorch DDP at its best": ([*theirs, "--best"], KEEP, "step_ms"),
        "one process, 2 threads": ([*theirs, *one_process], {}, "step_ms"),
        "the same, memory kept": ([*theirs, *one_process], KEEP, "step_ms"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", type=pathlib.Path, help="build folder [build]")
    parser.add_argument("--python", default=sys.executable, help="a python that has torch [this one]")
    parser.add_argument("--rounds", default=5, type=int, help="turns of each [5]")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--jsonl", type=pathlib.Path, help="file for one JSON object a turn")
    options = parser.parse_args()

    rows = []
    for model in options.models:
        ways = ways_of(model, options)
        times = {way: [] for way in ways}
        for turn in range(options.rounds):
            for way, (command, environment, field) in ways.items():
                result = run(command, environment)
                times[way].append(result[field])
                rows.append({"model": model, "way": way, "turn": turn, "step_ms": result[field]})
        ours = statistics.median(times["Lockstep, 2 ranks"])
        print(f"{model}, batch {BATCH[model]} a rank     step, median of {options.rounds}    over Lockstep's", flush=True)
        for way, taken in times.items():
            median = statistics.median(taken)
            print(f"  {way:26} {median:9.2f} ms {median / ours:16.2f}   ({min(taken):.2f} to {max(taken):.2f})")
    if options.jsonl:
        options.jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
