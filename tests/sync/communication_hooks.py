#!/usr/bin/env python3
"""Trains a small network with PyTorch's communication hooks, two ranks over Gloo on this machine.

    communication_hooks.py FOLDER

Writes one line a hook: its name and the parameters after 30 steps. communication_hooks_test.cpp does
the same with strategies. FOLDER is for the ranks to meet in.
"""

import os
import subprocess
import sys
import unittest.mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

RANKS = 2
STEPS = 30


def wave(start, *shape):
    """Numbers that both sides make alike."""
    count = int(torch.tensor(shape).prod())
    places = torch.arange(count, dtype=torch.float64) + 1
    return torch.sin(places * 1.7 + start).to(torch.float32).reshape(shape)


def network():
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(wave(number, *parameter.shape) * 0.3)
    return model


def train(hook, state, rank):
    model = torch.nn.parallel.DistributedDataParallel(network())
    if hook:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (model(wave(10 * step + rank, 8, 12)) - wave(7 * step + rank, 8, 10)).square().mean()
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def bf16_hook(state, bucket):
    """PyTorch's own, which under its name is refused over Gloo."""
    return default_hooks.bf16_compress_hook(state, bucket)


def run_rank(rank, folder):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as Lockstep's ranks do; Gloo's threads start with it
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(folder)}/meeting", rank=rank, world_size=RANKS)
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=2,
                                        start_powerSGD_iter=2, min_compression_rate=1)
    hooks = {"fp32": (None, None), "fp16": (default_hooks.fp16_compress_hook, None),
             "bf16": (bf16_hook, None), "powersgd": (powerSGD_hook.powerSGD_hook, state)}
    # The first factor is random there; here it is one that the other side can have, too.
    with unittest.mock.patch("torch.randn", lambda *shape, **_: wave(0, *shape)):
        for name, (hook, hook_state) in hooks.items():
            parameters = train(hook, hook_state, rank)
            if rank == 0:
                print(name, *(value.hex() for value in parameters.tolist()), flush=True)
    leave()


def leave():
    """Ends this rank where nothing can go wrong any more: Gloo's threads now and then abort a process
    that ends in the usual way."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main():
    if len(sys.argv) == 3:
        return run_rank(int(sys.argv[2]), sys.argv[1])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(rank)], env=environment)
             for rank in range(RANKS)]
    return int(any([rank.wait() for rank in ranks]))


if __name__ == "__main__":
    sys.exit(main())
