#!/usr/bin/env python3
"""The long run of bench_denormals by PyTorch's DistributedDataParallel: prints one JSON object.

    torch_denormals.py             denormals kept, as PyTorch does by default
    torch_denormals.py --flush     denormals flushed

The model, data, rates and fresh runs of bench/train/denormals.cpp; ranks are started by itself.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

from torch_step import join, start

PIXELS, PICTURES, BATCH = 784, 2000, 64


def ends_of(values):
    """The medians of the first five and of the last five."""
    return statistics.median(values[:5]), statistics.median(values[-5:])


def train(rank, options, port, results):
    torch.set_num_threads(1)
    torch.set_flush_denormal(options.flush)  # first: threads start with it
    torch.manual_seed(0)
    join(rank, options.ranks, port)
    torch.manual_seed(1 + rank)
    inputs = torch.rand(PICTURES, PIXELS) * (torch.arange(PIXELS) % 4 == 0)
    targets = torch.randint(10, (PICTURES,))

    def begin_run():
        model = nn.Sequential(nn.Linear(PIXELS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                              nn.Linear(256, 10))
        adam = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.95), weight_decay=1e-4)
        return nn.parallel.DistributedDataParallel(model), adam

    def step(ddp, adam):
        chosen = torch.randint(PICTURES, (BATCH,))
        begin, processor = time.perf_counter(), time.thread_time()
        adam.zero_grad()
        nn.functional.cross_entropy(ddp(inputs[chosen]), targets[chosen]).backward()
        adam.step()
        return 1000 * (time.perf_counter() - begin), 1000 * (time.thread_time() - processor)

    run = begin_run()
    epochs = []
    for _ in range(options.epochs):
        fresh = begin_run()
        times = zip(*((*step(*run), *step(*fresh)) for _ in range(options.steps)))
        slowest = torch.tensor([statistics.median(one) for one in times])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        epochs.append(slowest.tolist())
    if rank == 0:
        results.put(epochs)
    dist.barrier()
    os._exit(0)  # Gloo's threads now and then abort a process that takes them down


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flush", action="store_true", help="flush denormals")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=100, help="steps an epoch [100]")
    options = parser.parse_args()
    found = {"ranks": options.ranks, "denormals": "flushed" if options.flush else "kept"}
    wall, cpu, fresh_wall, fresh_cpu = zip(*start(train, options))
    found["first_ms"], found["last_ms"] = ends_of(wall)
    for name, epochs, fresh in (("growth", wall, fresh_wall), ("cpu_growth", cpu, fresh_cpu)):
        first, last = ends_of([one / other for one, other in zip(epochs, fresh)])
        found[name] = last / first
    print(json.dumps(found))


if __name__ == "__main__":
    main()
