#!/usr/bin/env python3
"""Lockstep and Gloo as backends of PyTorch, by turns in the same two processes: prints a table.

    PYTHONPATH=build/python bench/peers/torch_backend.py [--rounds 15] [--ranks 2]

A figure is the median of the rounds, and a round's figure the median of its calls; a round measures both backends one after the other, in alternating order. The
ratio is the median of the rounds' ratios, Gloo's time by Lockstep's.
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

import lockstep_torch  # noqa: F401: registers the backend

SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20]
BACKENDS = ("lockstep", "gloo")


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


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10))


def step_of(model, shape, group):
    model = nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs, labels = torch.randn(shape), torch.randint(0, 10, shape[:1])

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


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
    cases["making a group"] = group_makers(rank, args.ranks), 3
    for name, model, shape in (("DDP step, MLP b16", mlp, (16, 784)), ("DDP step, CNN b64", cnn, (64, 1, 28, 28))):
        torch.manual_seed(0)
        cases[name] = ({backend: step_of(model(), shape, group) for backend, group in groups.items()}, 3)
    for name, (functions, repetitions) in cases.items():
        times = {backend: [] for backend in BACKENDS}
        for number in range(args.rounds):
            for backend in BACKENDS if number % 2 else reversed(BACKENDS):
                times[backend].append(seconds(functions[backend], repetitions, groups[backend]))
        if rank == 0:
            ratio = statistics.median(gloo / own for own, gloo in zip(times["lockstep"], times["gloo"]))
            results.put((name, *(statistics.median(times[backend]) for backend in BACKENDS), ratio))
    dist.barrier()
    dist.destroy_process_group()


def text(value):
    return f"{value * 1e6:.{1 if value < 1e-4 else 0}f} µs" if value < 1e-3 else f"{value * 1e3:.1f} ms"


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
        print(f"| {args.ranks} ranks | Lockstep | Gloo | ratio |\n|---|---|---|---|", flush=True)
        for rank in ranks:
            rank.join()
        while not results.empty():
            name, own, gloo, ratio = results.get()
            print(f"| {name} | {text(own)} | {text(gloo)} | {ratio:.1f} |")
    if any(rank.exitcode for rank in ranks):
        raise SystemExit("torch_backend: a rank failed")


if __name__ == "__main__":
    main()
