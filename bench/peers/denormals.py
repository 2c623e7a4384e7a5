"""A long run whose idle weights decay into denormals, on two ranks, while these are flushed and kept:
Lockstep's bench_denormals, and the same by PyTorch's DistributedDataParallel."""

import statistics

from peers import HERE, by_way, run

FIELDS = ("first_ms", "last_ms", "fresh_first_ms", "fresh_last_ms", "growth", "cpu_growth")


def measure(options, machine, turn):
    ours = [options.build / "bin" / "lockstep", "run", "-n", 2]
    program = options.build / "bin" / "bench_denormals"
    theirs = [options.python, HERE / "torch_denormals.py"]
    ways = {
        "Lockstep, flushed (its default)": [*ours, program],
        "Lockstep, kept": [*ours, "--denormals", "keep", program],
        "PyTorch DDP, flushed": [*theirs, "--flush"],
        "PyTorch DDP, kept (its default)": theirs,
    }
    for way, command in ways.items():
        found, around = machine.around(lambda: run(command)[-1])
        yield {"turn": turn, "way": way, **{field: found[field] for field in FIELDS},
               "epochs_ms": found["epochs_ms"], "fresh_epochs_ms": found["fresh_epochs_ms"],
               **around}


def report(rows):
    lines = ["| denormals | ms a step, epochs 1 to 5 | epochs 26 to 30 "
             "| of a fresh run, beside epochs 1 to 5 | beside epochs 26 to 30 "
             "| growth beside the fresh run | of processor time |", "|---" * 7 + "|"]
    taken = {field: by_way(rows, field) for field in FIELDS}
    for way in taken["growth"]:
        cells = [f"{statistics.median(taken[field][way]):.2f}" for field in FIELDS]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
