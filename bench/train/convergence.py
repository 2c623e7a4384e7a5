#!/usr/bin/env python3
"""Trains mnist_cnn with one strategy after another and compares what comes out.

    convergence.py --build build --data FOLDER [--epochs 3] [--ranks 2] [STRATEGY ...]

Prints a table: test accuracy after the last epoch and how far it is from fp32's, what a rank sends of
gradients a step, how many times less that is than with fp32, and the time of a step, accounting the
whole epoch. Without strategies it takes all there are.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

STRATEGIES = ["fp32", "fp16", "bf16", "partial_update", "topk:0.01", "threshold:0.02", "int8",
              "power_sgd:rank=4", "local_sgd:period=8", "post_local_sgd:start=500,period=8", "adasum"]
BATCH = 64


def run(arguments, strategy):
    """The lines of --metrics, one an epoch."""
    binaries = pathlib.Path(arguments.build) / "bin"
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        command = [binaries / "lockstep", "run", "-n", str(arguments.ranks), "--quiet",
                   binaries / "mnist_cnn", "--quiet", "--data", arguments.data, "--epochs",
                   str(arguments.epochs), "--seed", str(arguments.seed), "--strategy", strategy,
                   "--checkpoint", "", "--no-efficiency", "--metrics", metrics]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{strategy} ended with {done.returncode}:\n{done.stderr}")
        return [json.loads(line) for line in metrics.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    arguments = parser.parse_args()

    print("| strategy | test accuracy | against fp32 | MB a step | times less | ms a step |")
    print("|---|---|---|---|---|---|", flush=True)
    dense = None
    for strategy in arguments.strategies:
        epochs = run(arguments, strategy)
        # Every rank has as many batches, the last one short.
        steps = sum(-(-round(epoch["images_per_second"] * epoch["seconds"]) // epoch["ranks"] // BATCH)
                    for epoch in epochs)
        row = {"strategy": strategy, "test_accuracy": 100 * epochs[-1]["test_accuracy"],
               "megabytes": epochs[-1]["gradient_megabytes"] / steps,
               "milliseconds": 1000 * sum(epoch["seconds"] for epoch in epochs) / steps}
        dense = dense or row
        print(f"| `{strategy}` | {row['test_accuracy']:.2f} % |"
              f" {row['test_accuracy'] - dense['test_accuracy']:+.2f} | {row['megabytes']:.4f} |"
              f" {dense['megabytes'] / row['megabytes']:.1f} | {row['milliseconds']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
