"""A training job of two ranks that can fail, in PyTorch or Lightning Fabric, for failures.py."""

import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist

arguments = argparse.ArgumentParser()
arguments.add_argument("fault", choices=["none", "raise", "early", "collective", "size", "model"])
arguments.add_argument("--fabric", action="store_true")
arguments.add_argument("--timeout", type=float, default=10)
options = arguments.parse_args()

timeout = datetime.timedelta(seconds=options.timeout)
torch.manual_seed(0)
fabric = None
if options.fabric:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    # DDPStrategy(timeout) is the longest wait of the start, too, which takes more than 10 s on a busy machine.
    dist.distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)
else:
    dist.init_process_group("gloo", timeout=timeout)
rank = dist.get_rank()
print(f"rank {rank} pid {os.getpid()}", flush=True)

if options.fault == "raise" and rank == 1:
    raise RuntimeError("something else failed")
if options.fault == "collective":
    if rank == 1:
        dist.barrier()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    print(f"rank {rank} has {tensor.tolist()}", flush=True)
    raise SystemExit(0)
if options.fault == "size":
    tensor = torch.ones(20 if rank == 1 else 10)
    dist.all_reduce(tensor)
    print(f"rank {rank} has {tensor.tolist()}", flush=True)
    raise SystemExit(0)

outputs = 5 if options.fault == "model" and rank == 1 else 10
model = torch.nn.Sequential(torch.nn.Linear(40, 200), torch.nn.Tanh(), torch.nn.Linear(200, outputs))
sgd = torch.optim.SGD(model.parameters(), lr=0.05)
if fabric:
    model, sgd = fabric.setup(model, sgd)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
steps = 100_000
if options.fault == "early":
    steps = 50 if rank == 1 else 100
for _ in range(steps):
    sgd.zero_grad()
    loss = model(torch.randn(8, 40)).square().mean()
    fabric.backward(loss) if fabric else loss.backward()
    sgd.step()
    time.sleep(0.002)
if not fabric:
    dist.destroy_process_group()
