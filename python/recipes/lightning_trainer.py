"""PyTorch Lightning: python3 lightning_trainer.py"""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


lightning.seed_everything(0)
model = Regression()
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="lockstep"), max_epochs=1,
                            logger=False, enable_checkpointing=False)
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4))
if trainer.is_global_zero:
    torch.save(model.state_dict(), "trained.pt")
