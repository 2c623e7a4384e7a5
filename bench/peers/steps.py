"""Training steps of Lockstep and of PyTorch, in turns.

Lockstep under its launcher, with an optimizer of torch::optim and with the fused one; PyTorch's
DistributedDataParallel over Gloo as it is shipped, and at its best (bucket views, static graph,
fused optimizer, denormals flushed, and glibc told to keep freed memory); and one process with two threads on the same
global batch. The optimizer is SGD, or what stands after the model's name.
"""

import re
import statistics

from peers import HERE, KEEP_MEMORY, run, spread, table

# Steps a round, so that a round takes about a second.
STEPS = {"cnn": 30, "mlp": 5, "mlp, adamw": 5, "resnet9": 3, "resnet50": 1}
BATCH = {"cnn": 64, "mlp": 16, "mlp, adamw": 16, "resnet9": 16, "resnet50": 8}
NAMES = {"sgd": ("SGD", "FusedSgd"), "adamw": ("AdamW", "FusedAdamW")}
# The model and the rank of the PowerSGD comparison.
HOOK_MODEL, HOOK_RANK = "resnet9", 4


def ways_of(model, options):
    """Name, command, environment, and where the time is in what the command prints."""
    network, _, optimizer = model.partition(", ")
    optimizer = optimizer or "sgd"
    name, fused = NAMES[optimizer]
    work = ["--model", network, "--optimizer", optimizer, "--rounds", 3, "--steps", STEPS[model]]
    ours = [options.build / "bin" / "lockstep", "run", "-n", 2,
            options.build / "bin" / "bench_train_step", *work, "--no-alone", "--no-faults"]
    theirs = [options.python, HERE / "torch_step.py", *work]
    one_process = ["--ranks", 1, "--threads", 2, "--batch-size", 2 * BATCH[model]]
    ways = {
        f"Lockstep, torch's {name}": (ours, {}, "together_ms"),
        f"Lockstep, {fused}": ([*ours, "--fused"], {}, "together_ms"),
        "Lockstep, one copy shared": ([*ours, "--share-memory"], {}, "together_ms"),
        "PyTorch DDP as shipped": (theirs, {}, "step_ms"),
        "PyTorch DDP at its best": ([*theirs, "--best"], KEEP_MEMORY, "step_ms"),
        "one process, 2 threads": ([*theirs, *one_process], {}, "step_ms"),
        "the same, memory kept": ([*theirs, *one_process], KEEP_MEMORY, "step_ms"),
        f"and fused {name}": ([*theirs, *one_process, "--best"], KEEP_MEMORY, "step_ms"),
    }
    if model == HOOK_MODEL:
        ways["Lockstep, PowerSGD of rank 4"] = (
            [*ours, "--strategy", f"power_sgd:rank={HOOK_RANK}"], {}, "together_ms")
        ways["PyTorch DDP, PowerSGD hook of rank 4"] = (
            [*theirs, "--powersgd", HOOK_RANK], {}, "step_ms")
    return ways


def measure(options, machine, turn):
    for model in options.models:
        for way, (command, environment, field) in ways_of(model, options).items():
            found, around = machine.around(lambda: run(command, environment)[-1])
            yield {"turn": turn, "model": model, "way": way, "ms": found[field],
                   "loader_percent": found.get("loader_percent"), **around}


def plain(way):
    """The way's name without that of its optimizer."""
    for name, fused in NAMES.values():
        way = re.sub(rf"\b{name}\b", "optimizer", way.replace(fused, "fused optimizer"))
    return way


def table_of(rows):
    """Ways by models, and what PyTorch takes over Lockstep."""
    models = dict.fromkeys(row["model"] for row in rows)
    times = {}
    for row in rows:
        times.setdefault(plain(row["way"]), {}).setdefault(row["model"], []).append(row["ms"])
    lines = [["ms a step", *(f"{model}, batch {BATCH[model]}" for model in models)]]
    for way, taken in times.items():
        lines.append([way, *(spread(taken[model], 1) if model in taken else "–" for model in models)])
    shipped, best = "PyTorch DDP as shipped", "PyTorch DDP at its best"
    for theirs, ours in ((shipped, "Lockstep, torch's optimizer"), (best, "Lockstep, fused optimizer"),
                         (best, "Lockstep, one copy shared")):
        if theirs in times and ours in times:
            lines.append([f"{theirs} over {ours}", *(
                f"{statistics.median(times[theirs][model]) / statistics.median(times[ours][model]):.2f}" for model in models)])
    return table(*lines)


def loader(rows):
    """What reading MNIST's batches takes of the CNN's step; the other models have one batch."""
    shares = [row["loader_percent"] for row in rows
              if row["model"] == "cnn" and row["loader_percent"] is not None]
    if not shares:
        return ""
    return (f"The data loader, which reads each batch when it is asked for, took {statistics.median(shares):.2f} %"
            f" of the CNN's step ({min(shares):.2f} to {max(shares):.2f}).\n")


def report(rows):
    turns = 1 + max(row["turn"] for row in rows)
    near = sum(row["state"] == "near" for row in rows)
    text = f"Medians of {turns} turns (fastest to slowest); {near} of {len(rows)} figures in the near state.\n"
    return "\n".join(filter(None, [text, table_of(rows), loader(rows)]))
