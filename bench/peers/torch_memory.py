#!/usr/bin/env python3
"""What bench_memory measures, by PyTorch in Python over Gloo: prints one JSON object.

    torch_memory.py --ranks 4                  DistributedDataParallel with AdamW
    torch_memory.py --ranks 4 --best           gradients are views of their buckets, AdamW is fused
    torch_memory.py --ranks 4 --best --zero    and ZeroRedundancyOptimizer divides AdamW's state

The memory is the sum of the ranks' proportional set sizes divided by their number, between backward and update. A small
model has trained before, so that the code that a step uses counts as memory of the process.
"""

import argparse
import json
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import torch_step

MB = 1e6


def proportional_set_size():
    """Memory of this process. Units: bytes."""
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/smaps_rollup: expected Pss, found none")


def memory():
    """The mean over ranks, when all of them have come here. Ranks: all."""
    dist.barrier()
    mean = torch.tensor(float(proportional_set_size()), dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def small_mlp():
    """Layers of the same kinds as those of the MLP."""
    return nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def training_of(layers, options):
    """The model and its optimizer. Ranks: all."""
    model = nn.parallel.DistributedDataParallel(layers, gradient_as_bucket_view=options.best)
    fused = {"fused": True} if options.best else {}
    if options.zero:
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, **fused)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)


def train(rank, options, port, results):
    torch.set_num_threads(1)
    torch_step.join(rank, options.ranks, port)
    torch.manual_seed(rank)
    make, batch_size, sample = torch_step.WORKS["mlp"]
    inputs, targets = torch.rand(batch_size, *sample), torch.randint(10, (batch_size,))

    def step(model, adamw):
        nn.functional.cross_entropy(model(inputs), targets).backward()
        with_gradients = memory()
        adamw.step()
        adamw.zero_grad()
        return with_gradients

    step(*training_of(small_mlp(), options))
    before = memory()
    training = training_of(make(), options)
    for _ in range(3):
        measured = step(*training)
    if rank == 0:
        results.put((measured, before))
    dist.barrier()
    os._exit(0)  # Gloo's threads now and then abort a process that takes them down


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--best", action="store_true", help="gradient_as_bucket_view, fused AdamW")
    parser.add_argument("--zero", action="store_true", help="ZeroRedundancyOptimizer")
    options = parser.parse_args()
    whole, before = torch_step.start(train, options)
    print(json.dumps({"ranks": options.ranks, "whole_mb_before_the_update": whole / MB,
                      "measured_mb_before_the_update": (whole - before) / MB}))


if __name__ == "__main__":
    main()
