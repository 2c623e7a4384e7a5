#!/usr/bin/env python3
"""Lockstep beside PyTorch over a limited link, in turns; as root.

    bench/two_hosts/compare.py --build build --docs docs/results.md

Two hosts that tools/two-hosts makes of this machine, one rank of one thread on each. At 1 Gbit/s an
all_reduce of 25 MiB and of 1 KiB and the step of an MLP, at 100 Mbit/s that of SINGA's CNN. Every figure stands
beside what the link alone takes: bytes that a rank sends over the link's rate.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / "bench" / "peers"
sys.path.insert(0, str(PEERS))

from peers import KEEP_MEMORY, by_way, put_into, run, say, spread, table  # noqa: E402

ADDRESS = "10.77.0.1"  # of the first host, as tools/two-hosts gives it
SIZE = 25 << 20
POWER_RANK = 4
# With several buckets PyTorch's PowerSGD hook stops for ever in Gloo here: all in one.
ONE_BUCKET = ["--bucket-mb", 400]
NO_NAMESPACES = 77


def matrices(model):
    """Rows and columns of the model's matrices, and how many of its parameters are in none."""
    return {"mlp": ([(4096, 784), (4096, 4096), (1024, 4096), (10, 1024)], 4096 + 4096 + 1024 + 10),
            "cnn": ([(20, 25), (50, 500), (500, 800), (10, 500)], 20 + 50 + 500 + 10)}[model]


def sent(model, what):
    """Bytes that each of two ranks sends a step."""
    shapes, vectors = matrices(model)
    count = sum(rows * columns for rows, columns in shapes) + vectors
    factors = sum((rows + columns) * POWER_RANK for rows, columns in shapes) + vectors
    return {"fp32": 4 * count, "fp16": 2 * count, "topk": 8 * -(-count // 100),
            "power_sgd": 4 * factors}[what]


def collectives(options, size, repeats):
    """Name, program, environment, field and factor to milliseconds, bytes that a rank sends."""
    bench = ["all_reduce", "--min", size, "--max", size, "--repeats", repeats]
    lockstep = [options.build / "bin" / "lockstep", "bench", *bench, "--memory", "group", "--json"]
    gloo = [options.python, PEERS / "gloo_bench.py", "--bytes", size, "--address", ADDRESS]
    mpi = options.build / "bin" / "bench_mpi"
    ways = {
        "Lockstep over MPI": ([*lockstep, "--backend", "mpi"], size),
        "Lockstep over TCP": ([*lockstep, "--backend", "tcp"], size),
        "Lockstep over UCX": (["env", "LOCKSTEP_TRANSPORT=ucx", *lockstep, "--backend", "tcp"], size),
        "PyTorch Gloo": (gloo, size),
    }
    if size == SIZE:
        ways = {"a TCP stream, both ways": ([options.python, HERE / "stream.py", "--address", ADDRESS], size),
                "Lockstep over TCP, as float16": ([*lockstep, "--backend", "tcp", "--wire", "float16"], size // 2), **ways}
    if mpi.exists():
        ways["OpenMPI"] = ([mpi, *bench], size)
    else:
        say("left out: OpenMPI, configured without LOCKSTEP_BUILD_PEERS")
    return {way: (words, {}, "time_us", 1e-3, sent) for way, (words, sent) in ways.items()}


def steps(options, model, steps_a_round, strategies):
    length = ["--model", model, "--batch-size", 64, "--steps", steps_a_round, "--rounds"]
    ours = [options.build / "bin" / "bench_train_step", "--no-faults", "--fused", *length]
    theirs = [options.python, PEERS / "torch_step.py", "--address", ADDRESS, *length, 3]
    hooks = {"fp32": [], "fp16": ["--fp16"], "power_sgd": ["--powersgd", POWER_RANK, *ONE_BUCKET]}
    ways = {"no exchange": ([*ours, 1], {}, "at_once_ms", 1, 0)}
    for strategy in strategies:
        what = strategy.split(":")[0]
        size = sent(model, what)
        ways[f"Lockstep, {strategy}"] = (
            [*ours, 3, "--no-alone", "--strategy", strategy], {}, "together_ms", 1, size)
        if what in hooks:
            hook = [*theirs, *hooks[what]]
            ways[f"PyTorch, {what}"] = (hook, {}, "step_ms", 1, size)
            ways[f"PyTorch at its best, {what}"] = ([*hook, "--best"], KEEP_MEMORY, "step_ms", 1, size)
    return ways


def works(options):
    """Title, the link's rate in bit/s and as tc writes it, and the ways to do it."""
    power = f"power_sgd:rank={POWER_RANK}"
    return {
        "all_reduce": ("all_reduce of 25 MiB, 1 Gbit/s", 1e9, "1gbit", collectives(options, SIZE, 5)),
        "small": ("all_reduce of 1 KiB", 1e9, "1gbit", collectives(options, 1 << 10, 2000)),
        "mlp": ("MLP, batch 64 a rank, 1 Gbit/s", 1e9, "1gbit",
                steps(options, "mlp", 3, ["fp32", "fp16", "topk:0.01", power])),
        "cnn": ("SINGA's CNN, batch 64 a rank, 100 Mbit/s", 1e8, "100mbit",
                steps(options, "cnn", 10, ["fp32", "fp16", "topk:0.01"])),
    }


def measure(rate, way):
    words, environment, field, factor, _ = way
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "link0", "MASTER_ADDR": ADDRESS,
                 "MASTER_PORT": "29500", **environment}
    assigned = [f"{name}={value}" for name, value in variables.items()]
    found = run([ROOT / "tools" / "two-hosts", "--rate", rate, "--per-host", 1, "env", *assigned, *words])
    return factor * found[-1][field]


def shown(taken):
    return spread(taken, 1 if min(taken) > 1 else 4)


def link_alone(way, rate):
    return f"{way[4] * 8 / rate * 1e3:.3g}"


def table_of_ways(title, rate, ways, rows):
    """A row for each way."""
    return table([title, "ms", "the link alone, ms"], *([way, shown(ms), link_alone(ways[way], rate)] for way, ms in by_way(rows, "ms").items()))


def table_of_steps(title, rate, ways, rows):
    """A row for each strategy of Lockstep, with PyTorch's hook of the same name."""
    taken = by_way(rows, "ms")
    lines = [[f"{title}: ms", "the link alone", "Lockstep", "PyTorch", "PyTorch at its best", "at its best over Lockstep"]]
    for way, ms in taken.items():
        strategy = way.removeprefix("Lockstep, ")
        if way.startswith("PyTorch"):
            continue
        hook = strategy.split(":")[0]
        theirs = [taken.get(f"{name}, {hook}") for name in ("PyTorch", "PyTorch at its best")]
        ratio = f"{statistics.median(theirs[1]) / statistics.median(ms):.2f}" if theirs[1] else "–"
        lines.append([strategy, link_alone(ways[way], rate), shown(ms), *(shown(found) if found else "–" for found in theirs), ratio])
    return table(*lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", default=sys.executable, help="one that has torch [this one]")
    parser.add_argument("--works", nargs="+", choices=["all_reduce", "small", "mlp", "cnn"],
                        default=["all_reduce", "small", "mlp", "cnn"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--docs", type=pathlib.Path, help="whose tables are replaced")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if not (options.build / "bin" / "bench_train_step").exists():
        sys.exit(f"--build: got {options.build}, and no bin/bench_train_step is there")
    probe = subprocess.run([ROOT / "tools" / "two-hosts", "true"], capture_output=True, text=True,
                           check=False)
    if probe.returncode == NO_NAMESPACES:
        sys.exit(probe.stderr.strip())
    return options


def main():
    options = parse_arguments()
    chosen = {name: work for name, work in works(options).items() if name in options.works}
    rows = {name: [] for name in chosen}
    for turn in range(options.turns):
        for name, (_, _, tc_rate, ways) in chosen.items():
            for way in ways:
                rows[name].append({"way": way, "ms": measure(tc_rate, ways[way])})
                say(f"turn {turn + 1} of {options.turns}: {name}, {way}: {rows[name][-1]['ms']:.4g} ms")
    text = f"Medians of {options.turns} turns (fastest to slowest).\n\n" + "\n".join(
        (table_of_steps if name in ("mlp", "cnn") else table_of_ways)(title, rate, ways, rows[name])
        for name, (title, rate, _, ways) in chosen.items())
    print(text)
    if options.docs:
        put_into(options.docs, "two hosts", text)


if __name__ == "__main__":
    main()
