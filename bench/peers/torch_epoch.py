#!/usr/bin/env python3
"""An epoch of MNIST by PyTorch's DistributedDataParallel, digits in memory; prints one JSON object.

The model, start, rates and batches of examples/mnist_cnn.cpp; ranks are started by itself.
"""

import argparse
import gzip
import json
import math
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn

from torch_step import WORKS, free_port, join

RANKS = 2


def idx(folder, name, header):
    data = bytearray(gzip.decompress((pathlib.Path(folder) / f"{name}.gz").read_bytes())[header:])
    return torch.frombuffer(data, dtype=torch.uint8)


def digits(folder, which):
    images = idx(folder, f"{which}-images-idx3-ubyte", 16).view(-1, 1, 28, 28).float() / 255
    return images, idx(folder, f"{which}-labels-idx1-ubyte", 8).long()


def train(rank, folder, port):
    torch.set_num_threads(1)
    join(rank, RANKS, port)
    images, labels = digits(folder, "train")
    test_images, test_labels = digits(folder, "t10k")
    torch.manual_seed(0)
    model = WORKS["cnn"][0]()
    for parameter in model.parameters():
        fans = parameter.numel() / parameter.size(0) + parameter.size(0)
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0, math.sqrt(2 / fans))
        else:
            nn.init.zeros_(parameter)
    ddp = nn.parallel.DistributedDataParallel(model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[rank::RANKS]
    loss_sum, correct = torch.zeros(()), torch.zeros((), dtype=torch.long)
    dist.barrier()
    begin = time.perf_counter()
    for chosen in order.split(64):
        sgd.zero_grad()
        outputs, targets = ddp(images[chosen]), labels[chosen]
        loss = nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        sgd.step()
        loss_sum += loss.detach() * len(chosen)
        correct += (outputs.argmax(1) == targets).sum()
    sums = torch.stack([loss_sum.double(), correct.double()])
    dist.all_reduce(sums)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        right = sum((model(some).argmax(1) == labels_).sum() for some, labels_ in
                    zip(test_images[rank::RANKS].split(500), test_labels[rank::RANKS].split(500)))
    dist.all_reduce(right)
    if rank == 0:
        print(json.dumps({"seconds": seconds, "test_accuracy": right.item() / len(test_images)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder with MNIST's four .gz files")
    torch.multiprocessing.spawn(train, (parser.parse_args().data, free_port()), nprocs=RANKS)


if __name__ == "__main__":
    main()
