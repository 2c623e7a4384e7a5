"""Writes a state dict with the names and shapes of torchvision's resnet50, without torchvision.

    resnet50_weights.py FILE

Exits with 77 when there is no torch here.
"""

import collections
import sys

try:
    import torch
except ImportError as error:
    print(error)
    sys.exit(77)

torch.manual_seed(0)
state = collections.OrderedDict()


def conv(name, out, into, size):
    state[name + ".weight"] = torch.empty(out, into, size, size).uniform_(-0.01, 0.01)


def norm(name, channels):
    state[name + ".weight"] = torch.rand(channels)
    state[name + ".bias"] = torch.rand(channels)
    state[name + ".running_mean"] = torch.zeros(channels)
    state[name + ".running_var"] = torch.ones(channels)
    state[name + ".num_batches_tracked"] = torch.tensor(0)


conv("conv1", 64, 3, 7)
norm("bn1", 64)
into = 64
for layer, blocks in enumerate((3, 4, 6, 3), start=1):
    width = 32 << layer
    for block in range(blocks):
        prefix = f"layer{layer}.{block}."
        for number, (out, taken, size) in enumerate(
                ((width, into, 1), (width, width, 3), (4 * width, width, 1)), start=1):
            conv(f"{prefix}conv{number}", out, taken, size)
            norm(f"{prefix}bn{number}", out)
        if block == 0:
            conv(prefix + "downsample.0", 4 * width, into, 1)
            norm(prefix + "downsample.1", 4 * width)
        into = 4 * width
state["fc.weight"] = torch.rand(1000, 2048)
state["fc.bias"] = torch.rand(1000)
torch.save(state, sys.argv[1])
