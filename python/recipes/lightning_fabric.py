"""Lightning Fabric: python3 lightning_fabric.py"""

import lightning
import torch
from lightning.fabric.strategies import DDPStrategy

fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="lockstep"))
fabric.launch()
fabric.seed_everything(0)
module = torch.nn.Linear(8, 1)
model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), 0.01))
for batch in fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)):
    optimizer.zero_grad()
    fabric.backward(model(batch).square().mean())
    optimizer.step()
if fabric.is_global_zero:
    torch.save(module.state_dict(), "trained.pt")
