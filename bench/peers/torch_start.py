"""The shortest program of a rank in PyTorch: init, one all_reduce, end. As bench/start/start.cpp."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor[0] == dist.get_world_size()
dist.destroy_process_group()
