#!/usr/bin/env python3
"""Compares the bits that every strategy computes on every backend, between two builds or with a file.

Runs bench_strategy_digests with 1, 2, 3, 4 and 7 ranks on the host, mpi and hierarchical backends. Digests depend on
the machine's processor, so both sides must run on one machine.

    bench/train/strategy_digests.py --build build --write before.json
    bench/train/strategy_digests.py --build build --against before.json
"""

import argparse
import json
import pathlib
import subprocess
import sys

RANKS = (1, 2, 3, 4, 7)
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root"]


def commands(binaries):
    """(name, command) of each backend and number of ranks."""
    program = str(binaries / "bench_strategy_digests")
    for ranks in RANKS:
        yield f"host {ranks}", [str(binaries / "lockstep"), "run", "-n", str(ranks), program]
        mpi = ["-x", "OMP_NUM_THREADS=1", "-x"]
        yield f"mpi {ranks}", [*MPIRUN, "-n", str(ranks), *mpi, "LOCKSTEP_BACKEND=mpi", program]
        if ranks < 3:
            continue
        first = (ranks + 1) // 2
        host = lambda name, count: ["-n", str(count), *mpi, f"LOCKSTEP_HOST={name}", program]
        yield f"hierarchical {ranks}", [*MPIRUN, *host("a", first), ":", *host("b", ranks - first)]


def digests(binaries):
    found = {}
    for name, command in commands(binaries):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
        for line in done.stdout.splitlines():
            strategy, digest = line.split()
            found[f"{name} {strategy}"] = digest
        print(f"{name}: done", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", type=pathlib.Path, help="build folder [build]")
    parser.add_argument("--write", type=pathlib.Path, help="file for the digests")
    parser.add_argument("--against", type=pathlib.Path, help="file of digests, or another build folder")
    options = parser.parse_args()

    now = digests(options.build / "bin")
    if options.write:
        options.write.write_text(json.dumps(now, indent=1) + "\n")
    if not options.against:
        return 0
    before = (digests(options.against / "bin") if options.against.is_dir()
              else json.loads(options.against.read_text()))
    different = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    for name in different:
        print(f"{name}: {before.get(name)} before, {now.get(name)} now")
    print(f"{len(now)} digests, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
