"""Lockstep for tensors of the CPU, NCCL for those of GPUs: torchrun --nproc-per-node 2 cpu_and_cuda.py"""

import torch
import torch.distributed as dist

dist.init_process_group("cpu:lockstep,cuda:nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in torch.randn(16, 4, 8) + dist.get_rank():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "trained.pt")
dist.destroy_process_group()
