#!/usr/bin/env python3
"""Lockstep and Gloo as backends of PyTorch, by turns in the same two processes: prints a table.

    PYTHONPATH=build/python bench/peers/torch_backend.py [--rounds 15] [--ranks 2]

A figure is the median of the rounds, and a round's figure the median of its calls. A round measures both backends one after the
other, in alternating order. The ratio is the median of the rounds' ratios, Gloo's time by Lockstep's. For training steps, a third
turn of each round makes the same step without a backend, on all ranks at once. The limit is Gloo's time by that of this step: no
backend has a larger ratio, unless it shortens the computation.
"""

import argparse
import datetime
import multiprocessing
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import lockstep_torch  # noqa: F401: registers the backend
from torch_step import Block, Mean, WORKS

SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20]
LIST_TENSOR = 16 << 20  # bytes of a tensor in the lists of all_gather, gather, scatter, reduce_scatter and all_to_all
BACKENDS = ("lockstep", "gloo")
ALONE = "alone"  # a step without a backend
SMALL_MLP = (lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)), 16, (784,))
# Model, batch of a rank and sizes of one input, and options of DistributedDataParallel. Other models of torch_step.py take seconds,
# of which the exchange is the least part.
DDP_CASES = {
    "DDP step, MLP b16": (WORKS["mlp"], {}),
    "the same, gradient_as_bucket_view": (WORKS["mlp"], {"gradient_as_bucket_view": True}),
    "DDP step, MLP of 1.9 million parameters b16": (SMALL_MLP, {}),
    "DDP step, CNN b64": (WORKS["cnn"], {}),
}


def seconds(function, repetitions, group):
    function()
    dist.barrier(group=group)
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def size_text(size):
    return f"{size} B" if size < 1 << 10 else f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def step_of(model, optimizer, inputs):
    targets = torch.randint(10, inputs.shape[:1])

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def ddp_step(work, options, group):
    """group: None for a step without DistributedDataParallel."""
    make, batch_size, sample = work
    torch.manual_seed(0)
    model = make()
    if group is not None:
        model = nn.parallel.DistributedDataParallel(model, process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5)
    return step_of(model, optimizer, torch.rand(batch_size, *sample))


def fsdp_step(group):
    """Four layers of width 256, each of them sharded. group: None for a step without fully_shard."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), *(Block(256) for _ in range(4)), Mean(), nn.Linear(256, 10))
    if group is not None:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            if isinstance(layer, Block):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.rand(8, 32, 64))


def list_operations(rank, size, group):
    """Operations on lists of tensors, of which each has memory of its own."""
    one, got = torch.ones(LIST_TENSOR // 4), torch.empty(LIST_TENSOR // 4)
    ones, gots = ([torch.ones_like(one) for _ in range(size)] for _ in range(2))
    return {
        "all_gather": lambda: dist.all_gather(gots, one, group=group),
        "gather": lambda: dist.gather(one, gots if rank == 0 else None, group=group),
        "scatter": lambda: dist.scatter(got, ones if rank == 0 else None, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(got, ones, group=group),
        "all_to_all": lambda: dist.all_to_all(gots, ones, group=group),
    }


def group_makers(rank, size):
    """Functions that make a group without PyTorch's own steps, one for each backend. The groups are kept."""
    store, timeout, made = dist.distributed_c10d._get_default_store(), datetime.timedelta(minutes=1), []

    def lockstep():
        options = dist.distributed_c10d._DistributedBackendOptions()
        options.group_id, options.global_ranks_in_group = f"lockstep {len(made)}", list(range(size))
        options.store, options.group_rank, options.group_size = dist.PrefixStore(options.group_id, store), rank, size
        options.timeout = timeout
        made.append(lockstep_torch._create_process_group(options, None))

    def gloo():
        made.append(dist.ProcessGroupGloo(dist.PrefixStore(f"gloo {len(made)}", store), rank, size, timeout))

    return {"lockstep": lockstep, "gloo": gloo}


def rank_main(rank, args, path, results):
    torch.set_num_threads(1)
    dist.init_process_group("lockstep", init_method=f"file://{path}", rank=rank, world_size=args.ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    cases = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        cases[f"all_reduce {size_text(size)}"] = ({backend: lambda tensor=tensor, group=group: dist.all_reduce(tensor, group=group)
                                          for backend, group in groups.items()}, max(3, min(200, (8 << 20) // size)))
    lists = {backend: list_operations(rank, args.ranks, group) for backend, group in groups.items()}
    for name in lists["gloo"]:
        cases[f"{name} of lists, {size_text(LIST_TENSOR)}"] = {backend: own[name] for backend, own in lists.items()}, 3
    cases["making a group"] = group_makers(rank, args.ranks), 3
    # A group of a step that needs none is None.
    step_groups = groups | {ALONE: None}
    for name, (work, options) in DDP_CASES.items():
        cases[name] = {who: ddp_step(work, options, group) for who, group in step_groups.items()}, 3
    cases["FSDP2 step, small transformer b8"] = {who: fsdp_step(group) for who, group in step_groups.items()}, 3
    for name, (functions, repetitions) in cases.items():
        times = {who: [] for who in functions}
        for number in range(args.rounds):
            for who in list(functions) if number % 2 else reversed(functions):
                times[who].append(seconds(functions[who], repetitions, groups.get(who, groups["gloo"])))
        if rank == 0:
            results.put((name, times))
    dist.barrier()
    dist.destroy_process_group()


def text(value):
    return f"{value * 1e6:.{1 if value < 1e-4 else 0}f} µs" if value < 1e-3 else f"{value * 1e3:.1f} ms"


def row(name, times):
    medians = {who: text(statistics.median(values)) for who, values in times.items()}

    def by(who):
        """Gloo's time by that of another."""
        ratio = statistics.median(gloo / own for own, gloo in zip(times[who], times["gloo"]))
        return f"{ratio:.3g}"

    limit = (medians[ALONE], by(ALONE)) if ALONE in times else ("", "")
    return f"| {' | '.join((name, medians['lockstep'], medians['gloo'], by('lockstep'), *limit))} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="(default: 15)")
    parser.add_argument("--ranks", type=int, default=2, help="(default: 2)")
    args = parser.parse_args()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(rank, args, os.path.join(folder, "store"), results))
                 for rank in range(args.ranks)]
        for rank in ranks:
            rank.start()
        print(f"| {args.ranks} ranks | Lockstep | Gloo | ratio | alone | limit |\n|---|---|---|---|---|---|", flush=True)
        for rank in ranks:
            rank.join()
        while not results.empty():
            print(row(*results.get()))
    if any(rank.exitcode for rank in ranks):
        raise SystemExit("torch_backend: a rank failed")


if __name__ == "__main__":
    main()
