"""transformers: torchrun --nproc-per-node 2 transformers_trainer.py"""

import torch
import transformers

torch.distributed.init_process_group("lockstep")  # the Trainer itself makes groups of known backends only
transformers.set_seed(0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
texts = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 50, (64, 16))]
arguments = transformers.TrainingArguments("output", use_cpu=True, per_device_train_batch_size=4, num_train_epochs=1,
                                           save_strategy="no", report_to="none")
trainer = transformers.Trainer(model, arguments, train_dataset=texts)
trainer.train()
if trainer.is_world_process_zero():
    torch.save(model.state_dict(), "trained.pt")
torch.distributed.destroy_process_group()
