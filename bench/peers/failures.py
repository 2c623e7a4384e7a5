#!/usr/bin/env python3
"""How jobs of two ranks on this machine end when something fails: Lockstep's, and those of other libraries.

Prints a table: seconds from the failure to the end of the launcher and of all ranks, and the launcher's exit code. A job
that has not ended after --limit seconds is killed and shown as "> LIMIT". --show prints what each job wrote.

    bench/peers/failures.py --build build --python .venv/bin/python3 --repeats 3
"""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "faults"))

from processes import MARKER, Scanner, send  # noqa: E402

WAIT = 10  # s: the timeout for other ranks that every library is given that has one

# For each failure the argument of the program, and the process of the running job that gets a signal.
FAULTS = {
    "rank 1 is killed by SIGKILL": ("none", "rank", signal.SIGKILL),
    "rank 1 is stopped by SIGSTOP": ("none", "rank", signal.SIGSTOP),
    "the launcher is killed by SIGKILL": ("none", "launcher", signal.SIGKILL),
    "rank 1 raises an error": ("raise", None, None),
    "rank 1 ends after half of the steps": ("early", None, None),
    "rank 1 issues another collective": ("collective", None, None),
    "rank 1 passes another number of elements": ("size", None, None),
    "rank 1 has another model": ("model", None, None),
}


def lockstep(options, fault):
    folder = options.build / "bin"
    per_rank = {
        "none": [folder / "bench_victim", "--train", "--steps", "100000"],
        "raise": [folder / "failing_program", "1"],
        "collective": [folder / "failing_program", "mismatch"],
        "early": ["sh", "-c", f"exec {folder}/bench_victim --train --steps $((100 - 50 * LOCKSTEP_RANK))"],
        "model": ["sh", "-c", f"[ $LOCKSTEP_RANK = 0 ] && m=cnn || m=mlp; exec {folder}/bench_train_step --model $m"],
    }
    if fault == "size":  # `lockstep bench` takes its ranks from mpirun only
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        bench = [folder / "lockstep", "bench", "all_reduce"]
        return ["mpirun", *root, "-n", 1, *bench, "--min", 40, "--max", 40,
                ":", "-n", 1, *bench, "--min", 80, "--max", 80]
    return [folder / "lockstep", "run", "-n", 2, "--timeout", WAIT, *per_rank[fault]]


def torchrun(options, fault):
    return [options.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
            HERE / "torch_failures.py", fault, "--timeout", WAIT]


def fabric(options, fault):
    # As its documentation recommends for one machine: rank 0 is the launcher, too. `fabric run` is torchrun.
    return [options.python, HERE / "torch_failures.py", fault, "--timeout", WAIT, "--fabric"]


def mlx(options, fault):
    launch = pathlib.Path(options.python).parent / "mlx.launch"
    return [launch, "-n", 2, "--backend", "ring", "--python", options.python, HERE / "mlx_failures.py", fault]


class Failed(Exception):
    """A job that could not be started; says what it wrote."""


WAYS = {"Lockstep": lockstep, "torchrun": torchrun, "Fabric": fabric, "MLX": mlx}


def end(scanner, mark):
    for process in scanner.of(mark):
        send(process.pid, "KILL", mark)


def one(command, announced, target, sent, limit):
    """Seconds from the failure to the end of all processes, the launcher's exit code, and the output. Jobs whose ranks
    announce themselves count from there; others, of Lockstep, from the start of the launcher."""
    mark = uuid.uuid4().hex
    scanner = Scanner()
    with tempfile.TemporaryFile("w+") as output:
        begin = time.monotonic()
        job = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=output, stderr=output,
                               env={**os.environ, MARKER: mark, "OMP_NUM_THREADS": "1"}, start_new_session=True)

        def text():
            return os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace")

        if announced:
            while len(ranks := dict(re.findall(r"rank (\d+) pid (\d+)", text()))) < 2:
                if job.poll() is not None or time.monotonic() - begin > 60:
                    end(scanner, mark)
                    raise Failed(f"{command} did not start:\n{text()}")
                time.sleep(0.02)
            if target:
                time.sleep(1)
            begin = time.monotonic()
            if target:
                os.kill(int(ranks["1"]) if target == "rank" else job.pid, sent)
        while True:
            ended = job.poll() is not None
            left = scanner.of(mark)
            if (ended and not left) or time.monotonic() - begin > limit:
                break
            time.sleep(0.05)
        seconds = time.monotonic() - begin
        end(scanner, mark)
        code = job.wait()
        return (None if left else seconds), code, text()


def one_started(*arguments):
    """As one(); a busy machine may let a start run into the timeout."""
    for _ in range(2):
        try:
            return one(*arguments)
        except Failed:
            pass
    return one(*arguments)


def cell(runs, limit):
    """The median with its spread, or that the job did not end."""
    seconds = [run[0] for run in runs]
    if None in seconds:
        stuck = seconds.count(None)
        return f"> {limit:.0f} s" + (f" in {stuck} of {len(runs)}" if stuck < len(runs) else "")
    code = "/".join(str(code) for code in sorted({run[1] for run in runs}))
    spread = f"{statistics.median(seconds):.1f} s"
    if max(seconds) - min(seconds) > 0.5:
        spread += f" ({min(seconds):.1f} to {max(seconds):.1f})"
    return f"{spread}, exit {code}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="build tree of Lockstep")
    parser.add_argument("--python", default=sys.executable, help="python with torch, lightning-fabric and mlx")
    parser.add_argument("--ways", default=",".join(WAYS), help="which libraries, of " + ", ".join(WAYS))
    parser.add_argument("--faults", default="", help="only faults whose name contains this")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a job counts as hanging")
    parser.add_argument("--show", action="store_true", help="print the output of the first run of each")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.python = os.path.abspath(options.python)
    ways = options.ways.split(",")
    print("| failure | " + " | ".join(ways) + " |")
    print("|" + "---|" * (1 + len(ways)), flush=True)
    for name, (fault, target, sent) in FAULTS.items():
        if options.faults not in name:
            continue
        cells, shown = [], []
        for way in ways:
            command = WAYS[way](options, fault)
            announced = way != "Lockstep" or fault in ("none", "early")
            try:
                runs = [one_started(command, announced, target, sent, options.limit) for _ in range(options.repeats)]
                cells.append(cell(runs, options.limit))
                shown.append(f"--- {way}: {name}\n{runs[0][2]}")
            except Failed as error:
                cells.append("did not start")
                shown.append(f"--- {way}: {name}\n{error}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        if options.show:
            print("\n".join(shown), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
