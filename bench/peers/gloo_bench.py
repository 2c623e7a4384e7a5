#!/usr/bin/env python3
"""The work of `lockstep bench` by PyTorch over Gloo, as JSON objects; ranks are started by itself.

Measures as bench/ does: fresh inputs before each repetition, small buffers several at a time within
one timed round, from a barrier on, the slowest rank's time, medians.
"""

import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist

BUDGET_SECONDS, FEWEST, MOST = 0.25, 7, 201
SMALL, AT_ONCE, ROUND_BYTES = 128 << 10, 64, 256 << 10


def operation(name, ranks):
    """What does one collective, and the elements of its input and output of so many bytes."""
    return {
        "all_reduce": (lambda source, target: dist.all_reduce(source), 1, 0),
        "broadcast": (lambda source, target: dist.broadcast(source, 0), 1, 0),
        "all_gather": (lambda source, target: dist.all_gather_into_tensor(target, source), ranks, 1),
        "reduce_scatter": (lambda source, target: dist.reduce_scatter_tensor(target, source), 1, ranks),
        "barrier": (lambda source, target: dist.barrier(), 1, 0),
    }[name]


def rank_main(rank, options, port, results):
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=options.ranks)
    run, divide_source, divide_target = operation(options.collective, options.ranks)
    count = options.bytes // 4
    length = max(1, min(AT_ONCE, ROUND_BYTES // options.bytes)) if options.bytes <= SMALL else 1
    sources = [torch.ones(count // divide_source) for _ in range(length)]
    targets = [torch.ones(count // max(1, divide_target)) if divide_target else None for _ in sources]

    def timed():
        for source in sources:
            source.fill_(rank + 1)
        dist.barrier()
        begin = time.perf_counter()
        for source, target in zip(sources, targets):
            run(source, target)
        return time.perf_counter() - begin

    warm = sum(timed() for _ in range(3)) / 3
    repeats = torch.tensor([min(MOST, max(FEWEST, int(BUDGET_SECONDS / warm)))])
    dist.broadcast(repeats, 0)
    times = torch.tensor([timed() for _ in range(int(repeats))], dtype=torch.double)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        if options.collective == "all_reduce":
            assert all(source[-1] == options.ranks * (options.ranks + 1) / 2 for source in sources)
        results.put(statistics.median(times.tolist()) / length * 1e6)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collective")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="the larger of input and output")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(rank_main, (options, port, results), nprocs=options.ranks)
    print(json.dumps({"op": options.collective, "backend": "gloo", "ranks": options.ranks,
                      "memory": "private", "bytes": options.bytes, "time_us": results.get()}))


if __name__ == "__main__":
    main()
