"""accelerate: torchrun --nproc-per-node 2 accelerate_loop.py"""

import accelerate
import torch

torch.distributed.init_process_group("lockstep")  # accelerate itself makes groups of known backends only
accelerator = accelerate.Accelerator(cpu=True)
accelerate.utils.set_seed(0)
module = torch.nn.Linear(8, 1)
model, optimizer, batches = accelerator.prepare(
    module, torch.optim.SGD(module.parameters(), 0.01), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4))
for batch in batches:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
if accelerator.is_main_process:
    torch.save(module.state_dict(), "trained.pt")
accelerator.end_training()
