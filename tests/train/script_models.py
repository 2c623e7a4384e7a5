"""Exports the models of script_model_test.cpp from Python.

    script_models.py FOLDER

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
    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(into, out, 1, stride) if into != out else nn.Identity()

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 1, 1)
        self.blocks = nn.Sequential(Block(6, 6, 1), Block(6, 8, 2))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean([2, 3]))


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.norm1 = nn.LayerNorm(width)
        # A bias of k would have gradients of rounding, which Adagrad enlarges.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 2, 3 * width // 2).transpose(1, 2).chunk(3, -1)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = torch.softmax((q @ k.transpose(-1, -2)).masked_fill(~mask, -1e9), -1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Returns the logits and the last hidden state."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 8, sparse=True)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.layers = nn.ModuleList([Layer(8), Layer(8)])
        self.head = nn.Linear(8, 20)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.head(x), x


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(1)
    for name, model, example in (("resnet", ResNet(), torch.randn(2, 3, 6, 6, dtype=torch.double)),
                                 ("transformer", Transformer(), torch.randint(20, (2, 6)))):
        model = model.double().eval()
        for key, buffer in model.named_buffers():
            if "running" in key:
                buffer.uniform_(0.5, 1.5)
        torch.jit.script(model).save(folder / f"{name}.pt")
        # Other values, and what Python's model computes with them.
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.mul_(1.25)
        with torch.no_grad():
            output = model(example)
        torch.save({"state": model.state_dict(), "example": example,
                    "output": output if torch.is_tensor(output) else output[0],
                    "parameters": [key for key, _ in model.named_parameters()]}, folder / f"{name}_state.pt")


if __name__ == "__main__":
    main()
