#!/usr/bin/env python3
"""Lockstep and OpenMPI do the same collectives in turns, and the medians are compared.

Both measure with the same code (bench/), each figure of Lockstep with a cache line's round trip just before it: the
cores of a virtual machine move nearer and farther, and every figure with them. Where at least a third of the rounds
saw near cores, the others are left out. OpenMPI's ranks spin while they wait, so nothing can be probed beside them.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

NEAR_NS = 200
MPI_LAUNCH = ["mpirun", "--allow-run-as-root", "--oversubscribe"]

# Collective, ranks, and size as an argument of --min and --max.
WORK = [
    ("all_reduce", 2, "1KiB"),
    ("all_reduce", 2, "1MiB"),
    ("all_reduce", 2, "25MiB"),
    ("all_reduce", 2, "100MB"),
    ("all_reduce", 4, "1KiB"),
    ("barrier", 8, None),
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="folder where Lockstep was built")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program")
    parser.add_argument("--repeats", type=int, default=0, help="of each figure; 0: as fit")
    parser.add_argument("--jsonl", help="file for every single figure, one object a line")
    parser.add_argument("--check", action="store_true", help="check all results, too")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}, expected 1 or more")
    return arguments


def rows_of(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def options(arguments, size):
    words = ["--repeats", str(arguments.repeats)]
    if size:
        words += ["--min", size, "--max", size]
    if arguments.check:
        words.append("--check")
    return words


def measure_round(arguments, lockstep, peer):
    """One turn of everything: rows of both programs, alternating."""
    rows = []
    for collective, ranks, size in WORK:
        words = options(arguments, size)
        stream = ["--stream"] if size == "100MB" else []
        rows += rows_of([lockstep, "bench", collective, "-n", str(ranks), "--json", *words, *stream])
        if peer:
            rows += rows_of([*MPI_LAUNCH, "-n", str(ranks), peer, collective, *words])
    return rows


def median_of(rows, field):
    """Median over the rounds with near cores if they are enough, and how many those were."""
    near = [row for row in rows if (row["probe_ns"] or 0) < NEAR_NS]
    chosen = near if 3 * len(near) >= len(rows) else rows
    return statistics.median(row[field] for row in chosen), len(near)


def label(size):
    known = {0: "-", 1 << 10: "1 KiB", 1 << 20: "1 MiB", 25 << 20: "25 MiB", 100_000_000: "100 MB"}
    return known.get(size, str(size))


def print_table(all_rows):
    groups = {}
    for row in all_rows:
        key = (row["op"], row["ranks"], row["bytes"])
        groups.setdefault(key, {}).setdefault((row["backend"], row["memory"]), []).append(row)
    print(
        f"{'work':<12}{'ranks':>6}{'size':>8}{'memory':>9}{'us':>11}{'OpenMPI us':>12}{'ratio':>8}"
        f"{'probe ns':>10}{'near':>6}{'wrong':>7}"
    )
    for (op, ranks, size), kinds in groups.items():
        peers = [rows for (backend, _), rows in kinds.items() if backend != "host"]
        peer_us = median_of(peers[0], "time_us")[0] if peers else None
        for (backend, memory), rows in kinds.items():
            if backend != "host":
                continue
            time_us, near = median_of(rows, "time_us")
            both = rows + (peers[0] if peers else [])
            wrong = [row["wrong"] for row in both if row["wrong"] is not None]
            print(
                f"{op:<12}{ranks:>6}{label(size):>8}{memory:>9}{time_us:>11.2f}"
                + (f"{peer_us:>12.2f}{peer_us / time_us:>7.1f}x" if peers else f"{'-':>12}{'-':>8}")
                + f"{statistics.median(row['probe_ns'] or 0 for row in rows):>10.0f}{near:>4}/{len(rows)}"
                + f"{sum(wrong) if wrong else '-':>7}"
            )


def print_bandwidth(all_rows):
    """The large all-reduce in group memory reads and writes every rank's buffer once."""
    rows = [row for row in all_rows if row.get("stream_gbs") and row["memory"] == "group"]
    if not rows:
        return
    moved = [2 * row["ranks"] * row["bytes"] / row["time_us"] * 1e-3 for row in rows]
    percent = [100 * gbs / row["stream_gbs"] for gbs, row in zip(moved, rows)]
    stream = statistics.median(row["stream_gbs"] for row in rows)
    print(
        f"\na += b in two processes at once: {stream:.1f} GB/s; all_reduce of 100 MB in group memory"
        f" moves {statistics.median(percent):.0f} % of that"
        f" (rounds: {', '.join(f'{p:.0f}' for p in percent)})"
    )


def main():
    arguments = parse_arguments()
    lockstep = os.path.join(arguments.build, "bin", "lockstep")
    peer = os.path.join(arguments.build, "bin", "bench_mpi")
    if not os.access(lockstep, os.X_OK):
        sys.exit(f"{lockstep} is missing: build Lockstep there, or name its folder with --build")
    if not os.access(peer, os.X_OK) or not shutil.which(MPI_LAUNCH[0]):
        print(f"no peer: configure with -DLOCKSTEP_BUILD_PEERS=ON and install OpenMPI to get {peer}\n")
        peer = None
    all_rows = []
    for turn in range(arguments.rounds):
        for row in measure_round(arguments, lockstep, peer):
            all_rows.append({"round": turn, **row})
        print(f"round {turn + 1} of {arguments.rounds} done", file=sys.stderr)
    if arguments.jsonl:
        with open(arguments.jsonl, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in all_rows)
    print_table(all_rows)
    print_bandwidth(all_rows)


if __name__ == "__main__":
    main()
