"""Ray Train: python3 ray_train.py"""

import os

import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer


def train(config):
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in torch.randn(16, 4, 8) + ray.train.get_context().get_world_rank():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        torch.save(model.module.state_dict(), config["trained"])


ray.init(num_cpus=2, include_dashboard=False)
TorchTrainer(train, train_loop_config={"trained": os.path.abspath("trained.pt")}, torch_config=TorchConfig(backend="lockstep"),
             scaling_config=ray.train.ScalingConfig(num_workers=2)).fit()
