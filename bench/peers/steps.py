#!/usr/bin/env python3
"""Training steps of Lockstep and of PyTorch in turns within one run, and the ratios of their medians.

Lockstep under its launcher, with torch::optim::SGD and with FusedSgd; PyTorch's
DistributedDataParallel over Gloo as it is shipped; at its best (bucket views, static graph,
fused SGD, and glibc told to keep freed memory); and one process with two threads on the same global
batch. Prints a table a model.
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
    if options.powersgd:
        return {
            "Lockstep, PowerSGD": ([lockstep, "run", "-n", 2, *ours, "--strategy",
                                    f"powersgd:rank={options.powersgd}"], {}, "together_ms"),
            "PyTorch DDP, PowerSGD hook": ([*theirs, "--powersgd", options.powersgd], {}, "step_ms"),
        }
    one_process = ["--ranks", 1, "--threads", 2, "--batch-size", 2 * BATCH[model]]
    return {
        "Lockstep, torch's SGD": ([lockstep, "run", "-n", 2, *ours], {}, "together_ms"),
        "Lockstep, FusedSgd": ([lockstep, "run", "-n", 2, *ours, "--fused"], {}, "together_ms"),
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
    parser.add_argument("--powersgd", type=int, help="compare PowerSGD of this rank instead")
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
        medians = {way: statistics.median(taken) for way, taken in times.items()}
        ours = [way for way in ways if way.startswith("Lockstep")]
        print(f"\n| {model}, batch {BATCH[model]} a rank | ms a step | " +
              " | ".join(f"over {way}" for way in ours) + " |\n" + "|---" * (2 + len(ours)) + "|")
        for way, taken in times.items():
            ratios = " | ".join(f"{medians[way] / medians[other]:.2f}" for other in ours)
            print(f"| {way} | {medians[way]:.1f} ({min(taken):.1f} to {max(taken):.1f}) | {ratios} |",
                  flush=True)
    if options.jsonl:
        options.jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
