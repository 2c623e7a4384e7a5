#!/usr/bin/env python3
"""Lockstep beside everyone else who is installed: collectives, training steps, memory, start, an epoch.

Everything takes turns within one run, with the machine's state probed before and after each figure.
Prints a table for each part; --jsonl keeps every single figure, and --docs puts the tables between
the part's marks in a document.
"""

import argparse
import json
import pathlib
import platform
import subprocess
import sys

import collectives
import epoch
import memory
import start
import steps
from peers import Machine, put_into, say

PARTS = {"collectives": collectives, "steps": steps, "memory": memory, "start": start, "epoch": epoch}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path, help="build folder")
    parser.add_argument("--python", default=sys.executable, help="a python that has torch [this one]")
    parser.add_argument("--intel", type=pathlib.Path, help="where tools/peers put Intel MPI and oneCCL")
    parser.add_argument("--data", default=ROOT / "examples" / "data" / "mnist", type=pathlib.Path,
                        help="folder of MNIST [the sample in examples/data]")
    parser.add_argument("--rounds", default=3, type=int, help="turns of everything [3]")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--models", nargs="+", default=list(steps.STEPS), choices=steps.STEPS)
    parser.add_argument("--jsonl", type=pathlib.Path, help="file for every figure, an object a line")
    parser.add_argument("--docs", type=pathlib.Path, help="document to put the tables in")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, expected 1 or more")
    if not (options.build / "bin" / "lockstep").exists():
        parser.error(f"--build is {options.build}, and no bin/lockstep is there: build Lockstep first")
    options.data = options.data.resolve()
    return options


def surroundings(options):
    """What figures are to be read with."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    version = subprocess.run([options.build / "bin" / "lockstep", "--version"], capture_output=True,
                             text=True, check=False).stdout.strip()
    return {"part": "machine", "processor": model, "cores": sum(line.startswith("processor") for line in lines),
            "kernel": platform.release(), "lockstep": version, "missing": collectives.missing(options)}


def write(file, about, rows):
    """All that is known so far, one object a line."""
    if file:
        lines = [about, *({"part": part, **row} for part in rows for row in rows[part])]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main():
    options = parse_arguments()
    machine = Machine(options.build)
    about = surroundings(options)
    for line in about["missing"]:
        say(f"left out: {line}")
    rows = {part: [] for part in options.parts}
    for turn in range(options.rounds):
        for part in options.parts:
            rows[part].extend(PARTS[part].measure(options, machine, turn))
            say(f"turn {turn + 1} of {options.rounds}: {part} done")
        write(options.jsonl, about, rows)
    for part, found in rows.items():
        text = PARTS[part].report(found)
        if part == "collectives":
            text += "".join(f"\nLeft out: {line}." for line in about["missing"])
        print(f"\n{part}\n\n{text}")
        if options.docs:
            put_into(options.docs, part, text)


if __name__ == "__main__":
    main()
