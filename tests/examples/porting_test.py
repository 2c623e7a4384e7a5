"""Runs the programs of examples/porting before and after they are ported, and compares their losses step by step.

    porting_test.py SOURCE BIN

Before is one process, after are 2 and 3 ranks with the same global batch. Prints the lines that each port adds and removes,
and the greatest difference. docs/guides/porting.md must have these lines as they are in the sources.
"""

import difflib
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BIN = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
PAGE = SOURCE / "docs/guides/porting.md"
PROGRAMS = ("dist_mnist", "dcgan", "nanogpt", "ppo", "pinn")
# Program, arguments, compared steps (0 for all), tolerance. Sums over ranks round in another order. The steps of a GAN and of
# PPO enlarge that until the curves of float32 differ, as they do for another number of threads. Those of float64 stay equal.
RUNS = (("dist_mnist", ("DATA",), 0, 1e-4), ("dcgan", (), 10, 1e-4), ("dcgan", ("double",), 0, 1e-6),
        ("nanogpt", (), 0, 1e-5), ("ppo", ("double",), 0, 1e-6), ("pinn", (), 0, 1e-4))


def form(program, after):
    """The lines that the compiler gets of a program with or without WITH_LOCKSTEP."""
    lines, kept = [], [True]
    for line in (SOURCE / f"examples/porting/{program}.cpp").read_text(encoding="utf-8").splitlines():
        if condition := re.fullmatch(r"#if(n?)def WITH_LOCKSTEP", line):
            kept.append(after != bool(condition[1]))
        elif line == "#else":
            kept[-1] = not kept[-1]
        elif line == "#endif":
            kept.pop()
        elif kept[-1]:
            lines.append(line)
    return lines


def difference(program):
    """The lines that the port adds and removes, each behind its sign."""
    lines = difflib.unified_diff(form(program, False), form(program, True), n=0, lineterm="")
    return [line for line in list(lines)[2:] if not line.startswith("@@")]


def curve(program, arguments, ranks):
    """The numbers of each step, of one process before the port or of ranks after it."""
    command = [BIN / f"{program}_before", *arguments]
    if ranks:
        command = [BIN / "lockstep", "run", "-n", str(ranks), BIN / f"{program}_after", *arguments]
    with tempfile.TemporaryDirectory() as work:
        # Threads of OpenMP spin while they wait, also where other tests need the cores.
        variables = os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_DEVICE": "cpu"}
        done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True, timeout=120)
    if done.returncode or ranks and done.stderr:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    steps = [line for line in done.stdout.splitlines() if re.match(r"(step|iteration) \d", line)]
    return [[float(number) for number in re.findall(r" (-?\d\S*)", line)] for line in steps]


def greatest_difference(before, after):
    """As a part of the value, or of 0.001."""
    return max(abs(a - b) / max(abs(b), 1e-3) for one, other in zip(after, before, strict=True)
               for a, b in zip(one, other, strict=True))


class Porting(unittest.TestCase):
    def test_curves(self):
        runs = [run for run in RUNS if (BIN / f"{run[0]}_before").exists()]
        self.assertGreaterEqual(len(runs), len(RUNS) - 1, "dist_mnist needs MPI")
        with tempfile.TemporaryDirectory() as data:
            for file in (SOURCE / "examples/data/mnist").glob("train-*.gz"):
                with gzip.open(file) as packed, open(pathlib.Path(data, file.stem), "wb") as out:
                    shutil.copyfileobj(packed, out)
            for program, arguments, steps, tolerance in runs:
                given = [data if argument == "DATA" else argument for argument in arguments]
                before, *after = [curve(program, given, ranks)[:steps or None] for ranks in (0, 2, 3)]
                signs = [line[0] for line in difference(program)]
                two, three = [greatest_difference(before, one) for one in after]
                print(f"{' '.join((program, *arguments))}: {signs.count('+')} lines added, {signs.count('-')} removed, "
                      f"{len(before)} steps, greatest difference {two:.1e} with 2 ranks, {three:.1e} with 3", flush=True)
                self.assertLess(max(two, three), tolerance, program)

    def test_page(self):
        page = PAGE.read_text(encoding="utf-8")
        for program in PROGRAMS:
            found = [line[0] + line[1:].strip() for line in difference(program)]
            text = "\n".join(["```diff", *found, "```"])
            self.assertIn(text, page, f"{PAGE}: expected these lines of {program}:\n{text}")
            added = sum(line[0] == "+" for line in found)
            self.assertIn(f"| {program} | {added} | {len(found) - added} |", page)


if __name__ == "__main__":
    unittest.main()
