#!/usr/bin/env python3
"""The training steps of bench_train_step by PyTorch in Python: prints one JSON object.

    torch_step.py --model cnn --ranks 2            DistributedDataParallel over Gloo, as shipped
    torch_step.py --model cnn --ranks 2 --best     bucket views, static graph, fused optimizer, denormals flushed
    torch_step.py --model cnn --ranks 2 --powersgd 4     its PowerSGD hook of rank 4
    torch_step.py --model cnn --ranks 1 --threads 2 --batch-size 128     one process, two threads
    torch_step.py --model transformer --ranks 2 --device cuda     over NCCL, on a GPU each
    mpirun -n 2 torch_step.py --model cnn --address 10.77.0.1 --fp16     ranks that OpenMPI has started
"""

import argparse
import json
import os
import queue
import socket
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook


class Residual(nn.Module):
    def __init__(self, *layers, beside=nn.Identity()):
        super().__init__()
        self.block = nn.Sequential(*layers)
        self.beside = beside

    def forward(self, x):
        return self.beside(x) + self.block(x)


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                         nn.BatchNorm2d(outputs), nn.ReLU())


def residual(channels):
    return Residual(conv(channels, channels), conv(channels, channels))


LAUNCHED_PORT = 29500


def resnet50():
    def plain(inputs, outputs, size, stride=1):
        return [nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
                nn.BatchNorm2d(outputs)]

    layers = [*plain(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs, width = 64, 64
    for depth in (3, 4, 6, 3):
        for i in range(depth):
            stride = 2 if i == 0 and width > 64 else 1
            beside = nn.Sequential(*plain(inputs, 4 * width, 1, stride)) if i == 0 else nn.Identity()
            layers += [Residual(*plain(inputs, width, 1), nn.ReLU(), *plain(width, width, 3, stride),
                                nn.ReLU(), *plain(width, 4 * width, 1), beside=beside), nn.ReLU()]
            inputs = 4 * width
        width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 102))


class Block(nn.Module):
    """A layer of a transformer, with the norms first."""

    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.proj(attended.transpose(1, 2).reshape_as(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


# As in bench/train/models.h: model, batch of a rank, sizes of one input.
WORKS = {
    "cnn": (lambda: nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
        64, (1, 28, 28)),
    "mlp": (lambda: nn.Sequential(
        nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024),
        nn.ReLU(), nn.Linear(1024, 10)),
        16, (784,)),
    "resnet9": (lambda: nn.Sequential(
        conv(3, 64), conv(64, 128), nn.MaxPool2d(2), residual(128), conv(128, 256), nn.MaxPool2d(2),
        conv(256, 512), nn.MaxPool2d(2), residual(512), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(512, 10)),
        16, (3, 32, 32)),
    "resnet50": (resnet50, 8, (3, 224, 224)),
    "transformer": (lambda: nn.Sequential(
        nn.Linear(64, 512), *(Block() for _ in range(6)), nn.LayerNorm(512), Mean(), nn.Linear(512, 10)),
        32, (128, 64)),
}


def join(rank, ranks, port, address=None, backend="gloo"):
    """Joins a world. Over Gloo, ranks get cores of their own unless a launcher has started them."""
    if address is None and backend == "gloo":
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    dist.init_process_group(backend, init_method=f"tcp://{address or '127.0.0.1'}:{port}", rank=rank,
                            world_size=ranks)


def start(entry, options):
    """Runs entry(rank, options, port, results) on every rank. What rank 0 put into results; None on other ranks of mpirun."""
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    if getattr(options, "address", None):
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        options.ranks = int(os.environ["OMPI_COMM_WORLD_SIZE"])
        entry(rank, options, LAUNCHED_PORT, results)
        return results.get() if rank == 0 else None
    torch.multiprocessing.spawn(entry, (options, free_port(), results), nprocs=options.ranks)
    return results.get()


def train(rank, options, port, results):
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(options.best)
    torch.manual_seed(rank)
    make, batch_size, sample = WORKS[options.model]
    batch_size = options.batch_size or batch_size
    on_gpu = options.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    model = make().to(device)
    distributed = options.ranks > 1 or on_gpu
    if distributed:
        join(rank, options.ranks, port, options.address, "nccl" if on_gpu else "gloo")
        how = {"gradient_as_bucket_view": True, "static_graph": True} if options.best else {}
        if options.bucket_mb:
            how["bucket_cap_mb"] = options.bucket_mb
        model = nn.parallel.DistributedDataParallel(model, **how)
        if options.fp16:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if options.powersgd:
            # From the third step on, the earliest that it takes.
            state = powerSGD_hook.PowerSGDState(
                process_group=None, matrix_approximation_rank=options.powersgd, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    fused = True if options.best else None
    if options.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5, fused=fused)
    inputs = torch.rand(batch_size, *sample).to(device)
    targets = torch.randint(10, (batch_size,)).to(device)

    def steps(count):
        begin = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin) / count

    steps(options.warmup)
    rounds = []
    for _ in range(options.rounds):
        if distributed:
            dist.barrier()
        rounds.append(steps(options.steps))
    if distributed:
        slowest = torch.tensor(rounds, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        rounds = slowest.tolist()
    if rank == 0:
        results.put(rounds)
    if distributed:
        dist.barrier()
        if options.ranks > 1 and not options.address:
            os._exit(0)  # Gloo's threads now and then abort a process that takes them down
        dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WORKS, default="cnn")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: over NCCL [cpu]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads a rank [1]")
    parser.add_argument("--batch-size", type=int, help="of a rank [the model's]")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--best", action="store_true", help="bucket views, static graph, fused optimizer, denormals flushed")
    parser.add_argument("--fp16", action="store_true", help="the hook that sends halves")
    parser.add_argument("--address", help="of rank 0, where mpirun has started the ranks")
    parser.add_argument("--powersgd", type=int, help="rank of the PowerSGD hook [no hook]")
    parser.add_argument("--bucket-mb", type=float, help="of a bucket [PyTorch's 25]")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    if options.ranks == 1 and not options.address:  # without another process, which would load PyTorch once more
        results = queue.SimpleQueue()
        train(0, options, free_port(), results)
        rounds = results.get()
    else:
        rounds = start(train, options)
    if rounds is None:
        return
    print(json.dumps({"model": options.model, "ranks": options.ranks, "threads": options.threads,
                      "optimizer": options.optimizer, "best": options.best, "step_ms": statistics.median(rounds),
                      "rounds_ms": rounds}))


if __name__ == "__main__":
    main()
