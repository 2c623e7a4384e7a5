"""Memory of four ranks that train an MLP of 24.2 million parameters with AdamW: bench_memory, and the same by PyTorch's
DistributedDataParallel without and with ZeroRedundancyOptimizer."""

import statistics

from peers import HERE, by_way, run, table

RANKS = 4
FIELDS = ("whole_mb_before_the_update", "measured_mb_before_the_update")


def ways_of(options):
    """Name and command."""
    launcher = [options.build / "bin" / "lockstep", "run", "-n", RANKS]
    program = [options.build / "bin" / "bench_memory", "--rounds", 1, "--steps", 1, "--fused"]
    ours = [*launcher, "--freed-memory", "return", *program]
    theirs = [options.python, HERE / "torch_memory.py", "--ranks", RANKS]
    return {
        "Lockstep, freed memory kept (default)": [*launcher, *program],
        "Lockstep": ours,
        "Lockstep, Shard::optimizer": [*ours, "--shard", "optimizer"],
        "Lockstep, Shard::gradients": [*ours, "--shard", "gradients"],
        "Lockstep, share_memory": [*ours, "--share-memory"],
        "Lockstep, Shard::gradients, bfloat16 (kahan)": [*ours, "--shard", "gradients", "--bf16", "kahan"],
        "PyTorch DDP as shipped": theirs,
        "PyTorch DDP at its best": [*theirs, "--best"],
        "PyTorch DDP and ZeroRedundancyOptimizer": [*theirs, "--zero"],
        "PyTorch DDP and ZeroRedundancyOptimizer at its best": [*theirs, "--best", "--zero"],
    }


def measure(options, machine, turn):
    for way, command in ways_of(options).items():
        found, around = machine.around(lambda: run(command)[-1])
        yield {"turn": turn, "way": way, **{field: found[field] for field in FIELDS}, **around}


def report(rows):
    whole, training = ({way: statistics.median(taken) for way, taken in by_way(rows, field).items()} for field in FIELDS)
    best = "PyTorch DDP at its best"
    return table([f"memory, {RANKS} ranks, AdamW", "MB a rank", "without that before the model was made", f"of {best}"],
                 *([way, f"{mb:.0f}", f"{training[way]:.0f}", f"{100 * mb / whole[best]:.0f} %"] for way, mb in whole.items()))
