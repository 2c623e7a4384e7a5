#!/usr/bin/env python3
"""`lockstep bench all_reduce` by PyTorch over Gloo, as a JSON object; ranks are started by itself, or
with --address by mpirun.

Measures as bench/ does: fresh inputs before each repetition, small buffers several at a time within
one timed round, from a barrier on, the slowest rank's time, medians.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

from torch_step import join, start

BUDGET_SECONDS, FEWEST, MOST = 0.25, 7, 201
SMALL, AT_ONCE, ROUND_BYTES = 128 << 10, 64, 256 << 10


def rank_main(rank, options, port, results):
    torch.set_num_threads(1)
    join(rank, options.ranks, port, options.address)
    length = max(1, min(AT_ONCE, ROUND_BYTES // options.bytes)) if options.bytes <= SMALL else 1
    tensors = [torch.ones(options.bytes // 4) for _ in range(length)]

    def timed():
        for tensor in tensors:
            tensor.fill_(rank + 1)
        dist.barrier()
        begin = time.perf_counter()
        for tensor in tensors:
            dist.all_reduce(tensor)
        return time.perf_counter() - begin

    warm = sum(timed() for _ in range(3)) / 3
    repeats = torch.tensor([min(MOST, max(FEWEST, int(BUDGET_SECONDS / warm)))])
    dist.broadcast(repeats, 0)
    times = torch.tensor([timed() for _ in range(int(repeats))], dtype=torch.double)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        assert all(tensor[-1] == options.ranks * (options.ranks + 1) / 2 for tensor in tensors)
        results.put(statistics.median(times.tolist()) / length * 1e6)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the tensor")
    parser.add_argument("--address", help="of rank 0, where mpirun has started the ranks")
    options = parser.parse_args()
    us = start(rank_main, options)
    if us is not None:
        print(json.dumps({"op": "all_reduce", "backend": "gloo", "ranks": options.ranks, "memory": "private",
                          "bytes": options.bytes, "time_us": us}))


if __name__ == "__main__":
    main()
