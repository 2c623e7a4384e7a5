#!/usr/bin/env python3
"""`lockstep bench all_reduce` by PyTorch over Gloo, as a JSON object; ranks are started by itself.

Measures as bench/ does: fresh inputs before each repetition, small buffers several at a time within
one timed round, from a barrier on, the slowest rank's time, medians.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

from torch_step import free_port

BUDGET_SECONDS, FEWEST, MOST = 0.25, 7, 201
SMALL, AT_ONCE, ROUND_BYTES = 128 << 10, 64, 256 << 10


def rank_main(rank, options, port, results):
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=options.ranks)
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
    options = parser.parse_args()
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(rank_main, (options, free_port(), results), nprocs=options.ranks)
    print(json.dumps({"op": "all_reduce", "backend": "gloo", "ranks": options.ranks,
                      "memory": "private", "bytes": options.bytes, "time_us": results.get()}))


if __name__ == "__main__":
    main()
