"""Training steps of Lockstep and of PyTorch, in turns.

Lockstep under its launcher, with an optimizer of torch::optim and with the fused one; PyTorch's
DistributedDataParallel over Gloo as it is shipped, and at its best (bucket views, static graph,
fused optimizer, denormals flushed, and glibc told to keep freed memory); and one process with two threads on the same
global batch. The optimizer is SGD, or what stands after the model's name.
"""

import statistics

from peers import HERE, KEEP_MEMORY, by_way, run

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


def table(rows, model):
    times = by_way([row for row in rows if row["model"] == model], "ms")
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    ours = [way for way in times if way.startswith("Lockstep")]
    lines = [f"| {model}, batch {BATCH[model]} a rank | ms a step | "
             + " | ".join(f"over {way}" for way in ours) + " |", "|---" * (2 + len(ours)) + "|"]
    for way, taken in times.items():
        ratios = " | ".join(f"{medians[way] / medians[own]:.2f}" for own in ours)
        lines.append(f"| {way} | {medians[way]:.1f} ({min(taken):.1f} to {max(taken):.1f}) | {ratios} |")
    return "\n".join(lines) + "\n"


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
    models = dict.fromkeys(row["model"] for row in rows)
    return "\n".join([text, *(table(rows, model) for model in models), loader(rows)])
