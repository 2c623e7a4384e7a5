#!/usr/bin/env python3
"""Trains three models with PyTorch's own DistributedDataParallel, and a small network with each of its
communication hooks, for Lockstep to be compared with.

    reference.py FOLDER

Two ranks, each a process with one thread, over Gloo on the loopback interface; with LOCKSTEP_TEST_DEVICE=cuda, each
on a GPU of its own, over NCCL. Rank 0 writes FOLDER/<model>.script.pt, the model before the first step, and
FOLDER/<model>.pt: "end/…" are parameters and buffers after the last step, "input/<rank>" and "target/<rank>" what each
rank trains with, step by step. On CPUs and with numpy, FOLDER/hooks.pt has the parameters that each hook ends with.
Exits with 77 when there is no torch here with Gloo or NCCL.
"""

import os
import pathlib
import subprocess
import sys
import unittest.mock

STEPS = 50
RANKS = 2

os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
folder = pathlib.Path(sys.argv[1])
rank = int(sys.argv[2]) if len(sys.argv) > 2 else 0
on_gpus = os.environ.get("LOCKSTEP_TEST_DEVICE", "") == "cuda"

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    if not dist.is_available() or not (dist.is_nccl_available() if on_gpus else dist.is_gloo_available()):
        raise ImportError(f"torch was built without {'NCCL' if on_gpus else 'Gloo'}")
except ImportError as error:
    print(error)
    sys.exit(77)
try:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
except ImportError:
    powerSGD_hook = None


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                                  nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


def resnet18():
    """With a quarter of the channels, which are enough for two buckets."""
    blocks, width = [], 16
    for i, outputs in enumerate((16, 32, 64, 128)):
        blocks += [Block(width, outputs, 1 if i == 0 else 2), Block(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class Transformer(nn.Module):
    """Two layers that predict the next of 40 words; the embedding is the output layer too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.place = nn.Embedding(40, 32), nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, words):
        hidden = torch.full((12, 12), float("-inf"), device=words.device).triu(1)
        x = self.layers(self.embedding(words) + self.place.weight, mask=hidden)
        return F.linear(x, self.embedding.weight).reshape(-1, 40)


class Branches(nn.Module):
    """Takes one of three branches: another on each rank and in each step, so that one is taken by nobody."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 24)
        self.branches = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.outer = nn.Linear(24, 10)

    def forward(self, x, turn: int):
        x = torch.tanh(self.inner(x))
        for number, branch in enumerate(self.branches):
            if number == turn % 3:
                x = torch.tanh(branch(x))
        return self.outer(x)


def images(*sizes):
    return lambda source: (torch.randn(sizes, generator=source),
                           torch.randint(10, sizes[:1], generator=source))


def words(source):
    text = torch.randint(40, (4, 13), generator=source)
    return text[:, :-1].clone(), text[:, 1:].reshape(-1)


CASES = {
    "resnet18": (resnet18, images(4, 3, 32, 32), 0.01),
    "transformer": (Transformer, words, 0.05),
    "branches": (Branches, images(8, 16), 0.05),
}


def train(name):
    make, draw, rate = CASES[name]
    torch.manual_seed(1)
    model = make()
    if rank == 0:
        torch.jit.script(model).save(folder / f"{name}.script.pt")
    kept, batches = {}, []
    for r in range(RANKS):
        source = torch.Generator().manual_seed(100 + r)
        batches.append([draw(source) for _ in range(STEPS)])
        kept[f"input/{r}"] = torch.stack([x for x, _ in batches[r]])
        kept[f"target/{r}"] = torch.stack([y for _, y in batches[r]])

    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    model.to(device)
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=name == "branches")
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    for step, (x, y) in enumerate(batches[rank]):
        sgd.zero_grad()
        turn = (step + rank,) if name == "branches" else ()
        F.cross_entropy(ddp(x.to(device), *turn), y.to(device)).backward()
        sgd.step()
    if rank == 0:
        torch.save(kept | {f"end/{key}": tensor.cpu() for key, tensor in model.state_dict().items()}, folder / f"{name}.pt")


def wave(start, *shape):
    """Numbers that both sides make alike."""
    count = int(torch.tensor(shape).prod())
    places = torch.arange(count, dtype=torch.float64) + 1
    return torch.sin(places * 1.7 + start).to(torch.float32).reshape(shape)


def bf16_hook(state, bucket):
    """PyTorch's own, which under its name is refused over Gloo."""
    return default_hooks.bf16_compress_hook(state, bucket)


def train_with_hook(hook, state):
    network = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10))
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(wave(number, *parameter.shape) * 0.3)
    ddp = nn.parallel.DistributedDataParallel(network)
    ddp.register_comm_hook(state, hook)
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(30):
        sgd.zero_grad()
        loss = (ddp(wave(10 * step + rank, 8, 12)) - wave(7 * step + rank, 8, 10)).square().mean()
        loss.backward()
        sgd.step()
    return torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])


def train_with_hooks():
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=2,
                                        start_powerSGD_iter=2, min_compression_rate=1)
    trained = {"fp16": train_with_hook(default_hooks.fp16_compress_hook, None),
               "bf16": train_with_hook(bf16_hook, None)}
    # The first factor is random there; here it is one that the other side can have, too.
    with unittest.mock.patch("torch.randn", lambda *shape, **_: wave(0, *shape)):
        trained["powersgd"] = train_with_hook(powerSGD_hook.powerSGD_hook, state)
    if rank == 0:
        torch.save(trained, folder / "hooks.pt")


def main():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as Lockstep's ranks do; Gloo's threads start with it
    if on_gpus:
        torch.cuda.set_device(rank)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    others = []
    if rank == 0:
        others = [subprocess.Popen([sys.executable, __file__, str(folder), str(r)])
                  for r in range(1, RANKS)]
    dist.init_process_group("nccl" if on_gpus else "gloo", init_method=f"file://{folder.resolve()}/meeting", rank=rank,
                            world_size=RANKS)
    for name in CASES:
        train(name)
    if powerSGD_hook and not on_gpus:
        train_with_hooks()
    # All is written. Gloo's threads now and then abort a process that ends in the usual way.
    dist.barrier()
    os._exit(int(any([other.wait() for other in others])))


if __name__ == "__main__":
    main()
