"""Unmodified PyTorch programs: on 2 ranks the same bits as with gloo, on 3 the same bits in every variant of
DistributedDataParallel."""

import hashlib
import os
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lockstep_torch  # noqa: F401: registers the backend
import ranks

DDP = nn.parallel.DistributedDataParallel


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def made(seed=0):
    torch.manual_seed(seed)
    return Transformer()


def digest(tensors):
    text = hashlib.sha256()
    for tensor in tensors:
        text.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def train(model, optimizer, rank, steps=4, clip=False):
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        tokens = torch.randint(0, 50, (4, 8), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def trained_by_ddp(rank, hook=None, **options):
    model = DDP(made(), **options)
    if hook is not None:
        model.register_comm_hook(*hook)
    train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), rank)
    return digest(model.parameters())


def ddp_variants(rank, size):
    return {name: trained_by_ddp(rank, **options) for name, options in {
        "default": {}, "small_buckets": {"bucket_cap_mb": 0.02}, "view": {"gradient_as_bucket_view": True},
        "static_graph": {"static_graph": True}, "find_unused": {"find_unused_parameters": True}}.items()}


def bf16(state, bucket):
    """DDP refuses the hook itself without a GPU."""
    return default_hooks.bf16_compress_hook(state, bucket)


def resized(state, bucket):
    """Its result is longer than the bucket was, and DDP uses the beginning."""
    buffer = bucket.buffer()
    buffer.resize_(buffer.numel() + 100_000)[-100_000:] = 1
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0] / 2)


def hooks(rank, size):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return {"bf16": trained_by_ddp(rank, (None, bf16)),
            "fp16": trained_by_ddp(rank, (None, default_hooks.fp16_compress_hook)),
            "power_sgd": trained_by_ddp(rank, (state, powerSGD_hook.powerSGD_hook)),
            "resized": trained_by_ddp(rank, (None, resized), bucket_cap_mb=0.02),
            "resized_view": trained_by_ddp(rank, (None, resized), bucket_cap_mb=0.02, gradient_as_bucket_view=True)}


class PartlyUsed(Transformer):
    """The last rank does not use the second layer."""

    def forward(self, tokens):
        layers = self.encoder.layers[:1] if dist.get_rank() == dist.get_world_size() - 1 else self.encoder.layers
        hidden = self.embedding(tokens)
        for layer in layers:
            hidden = layer(hidden)
        return self.head(hidden)


def unused(rank, size):
    torch.manual_seed(0)
    model = DDP(PartlyUsed(), find_unused_parameters=True)
    train(model, torch.optim.SGD(model.parameters(), 0.1), rank)
    return digest(model.parameters())


def zero(rank, size):
    model = DDP(made())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    train(model, optimizer, rank)
    optimizer.consolidate_state_dict(0)
    return digest(model.parameters()), len(optimizer.state_dict()["state"]) if rank == 0 else 0


def sharded(seed):
    model = made(seed)
    for layer in model.encoder.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), 1e-3)


def whole(model):
    return digest([parameter.full_tensor() for parameter in model.parameters()])


def fsdp(rank, size):
    model, optimizer = sharded(0)
    train(model, optimizer, rank, clip=True)
    return whole(model)


def checkpoints(rank, size):
    model, optimizer = sharded(0)
    train(model, optimizer, rank, steps=2)
    box = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box, 0)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(states, checkpoint_id=os.path.join(box[0], "saved"))
    dcp.async_save({"model": states["model"]}, checkpoint_id=os.path.join(box[0], "later"),
                   process_group=dist.new_group()).result()
    other, its_optimizer = sharded(5)
    loaded = dict(zip(("model", "optimizer"), get_state_dict(other, its_optimizer)))
    dcp.load(loaded, checkpoint_id=os.path.join(box[0], "saved"))
    set_state_dict(other, its_optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert whole(other) == whole(model)
    dist.barrier()
    if rank == 0:
        import shutil
        shutil.rmtree(box[0])
    return whole(other)


def join(rank, size):
    model = DDP(made())
    with Join([model]):
        train(model, torch.optim.SGD(model.parameters(), 0.1), rank, steps=2 + rank)
    return digest(model.parameters())


def tensor_parallel(rank, size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6))
    parallelize_module(model, init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    model(torch.randn(4, 12)).sum().backward()
    return digest([parameter.grad.full_tensor() for parameter in model.parameters()])


class TrainingTest(unittest.TestCase):
    def test_the_same_bits_as_gloo(self):
        for program in (ddp_variants, unused, hooks, zero, fsdp, checkpoints, join, tensor_parallel):
            with self.subTest(program.__name__):
                self.assertEqual(ranks.run(program, 2), ranks.run(program, 2, "gloo"))

    def test_one_result_of_all_variants_of_ddp(self):
        results = ranks.run(ddp_variants, 3)
        self.assertEqual(len({value for result in results for value in result.values()}), 1, results)


if __name__ == "__main__":
    unittest.main()
