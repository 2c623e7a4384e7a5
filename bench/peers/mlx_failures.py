"""A training job of two ranks that can fail, in MLX, for failures.py."""

import argparse
import os
import time

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers

arguments = argparse.ArgumentParser()
arguments.add_argument("fault", choices=["none", "raise", "early", "collective", "size", "model"])
options = arguments.parse_args()

mx.random.seed(0)
world = mx.distributed.init(backend="ring", strict=True)
rank = world.rank()
mx.eval(mx.distributed.all_sum(mx.ones(1)))
print(f"rank {rank} pid {os.getpid()}", flush=True)

if options.fault == "raise" and rank == 1:
    raise RuntimeError("something else failed")
if options.fault == "collective":
    if rank == 1:
        mx.eval(mx.distributed.all_gather(mx.ones(4)))
    print(f"rank {rank} has {mx.distributed.all_sum(mx.ones(1)).tolist()}", flush=True)
    raise SystemExit(0)
if options.fault == "size":
    print(f"rank {rank} has {mx.distributed.all_sum(mx.ones(20 if rank == 1 else 10)).tolist()}", flush=True)
    raise SystemExit(0)

outputs = 5 if options.fault == "model" and rank == 1 else 10
model = nn.Sequential(nn.Linear(40, 200), nn.Tanh(), nn.Linear(200, outputs))
sgd = optimizers.SGD(learning_rate=0.05)
loss_and_gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())
steps = {"early": 50 if rank == 1 else 100, "model": 20}.get(options.fault, 100_000)
for _ in range(steps):
    loss, gradients = loss_and_gradients(mx.random.normal((8, 40)))
    sgd.update(model, nn.average_gradients(gradients))
    mx.eval(loss, model.parameters())
    time.sleep(0.002)
