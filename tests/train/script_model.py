"""Exports the model of script_model_test.cpp from Python.

    script_model.py FOLDER

Exits 77, with the reason on stdout, when a package is missing.
"""

import pathlib
import sys

try:
    import torch
    from torch import nn
except ImportError as error:
    print(error)
    sys.exit(77)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.project = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.project(self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2))


class Sequences(nn.Module):
    """Returns the logits and the last hidden state."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 8, sparse=True)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 20)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(x), x


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(1)
    model, example = Sequences().double().eval(), torch.randint(20, (2, 6))
    for key, buffer in model.named_buffers():
        if "running" in key:
            buffer.uniform_(0.5, 1.5)
    torch.jit.script(model).save(folder / "model.pt")
    # Other values, and what Python's model computes with them.
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.mul_(1.25)
    with torch.no_grad():
        output = model(example)[0]
    torch.save({"state": model.state_dict(), "example": example, "output": output,
                "parameters": [key for key, _ in model.named_parameters()]}, folder / "state.pt")


if __name__ == "__main__":
    main()
