"""The other side of torch_interop_test.cpp: PyTorch's own files, models and optimizers.

    torch_interop.py ACTION FOLDER

Exits 77, with the reason on stdout, when a package is missing.
"""

import collections
import pathlib
import sys

try:
    import torch
except ImportError as error:
    print(error)
    sys.exit(77)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.second = torch.nn.Linear(6, 3)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        # Past norm too: a bias that only norm sees has gradients of rounding, which Adam enlarges.
        # tanh, because a line search near the corner of relu enlarges rounding by 1e7.
        hidden = torch.tanh(self.first(x))
        return self.second(hidden + self.norm(hidden))


OPTIMIZERS = {
    "Sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "SgdWithoutMomentum": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "Lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2, history_size=3),
    "LbfgsWithLineSearch": lambda p: torch.optim.LBFGS(p, max_iter=3, history_size=4, line_search_fn="strong_wolfe"),
}

# Those of the second and third line have no storage class of their own in torch.save, or are complex numbers.
DTYPES = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
          "uint16", "uint32", "uint64", "complex64", "complex128", "complex32",
          "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def numbers(dtype):
    return torch.tensor([0, 1, 3]).to(getattr(torch, dtype))


def same_bytes(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def train(model, optimizer, batches):
    for x, y in batches:
        def loss():
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(model(x), y)
            value.backward()
            return value

        optimizer.step(loss)


def write(folder):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"layer": torch.nn.ModuleList([Net()])}).state_dict()
    sums = {name: float(tensor.double().sum()) for name, tensor in model.items()}
    torch.save({"model": model, "epoch": 3, "best": 0.5, "name": "r\u00e9snet", "ok": True,
                "none": None, "sizes": [torch.Size([2, 3]), (1, -2**40)], "sums": sums},
               folder / "nested.pt")
    tied = torch.randn(5, 3)
    torch.save({"a": tied, "b": tied, "part": tied[1:3], "t": tied.t(),
                "parameter": torch.nn.Parameter(tied), "scalar": torch.tensor(2.5),
                "empty": torch.empty(0, 4)}, folder / "tied.pt")
    for name in DTYPES:
        torch.save(numbers(name), folder / f"{name}.pt")
    drawn = torch.randn(3, dtype=torch.complex64)
    torch.save({"plain": drawn, "conjugate": drawn.conj()}, folder / "conjugate.pt")
    torch.save({"plain": drawn.imag.clone(), "negative": drawn.conj().imag}, folder / "negative.pt")
    torch.save(torch.eye(3).to_sparse(), folder / "sparse.pt")
    # A storage of one element, whose tensor claims 2 GiB.
    torch.save(torch.zeros(1, dtype=torch.complex64).conj().imag.expand(2**29), folder / "expanded.pt")
    linear = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(linear.parameters(), lr=0.5)
    steps = torch.optim.lr_scheduler.MultiStepLR(sgd, [3, 5, 5])
    states = collections.defaultdict(list, {"a": [1]})
    torch.save({"model": linear.state_dict(), "steps": steps.state_dict(), "states": states,
                "device": torch.device("cuda", 1), "dtype": torch.bfloat16,
                "sparse": {"eye": torch.eye(3).to_sparse(), "ones": torch.ones(2)},
                "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
                "chain": torch.optim.lr_scheduler.ChainedScheduler([steps], sgd),
                "queue": collections.deque([1, 2]), "set": {1, 2}, "bytes": b"x", "big": 2**100,
                "groups": [{"lr": 0.5, "made_by": Net}]}, folder / "others.pt")

    torch.save(Net(), folder / "whole.pt")
    torch.save({"f": print}, folder / "function.pt")
    torch.save(model, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"a": 1}, folder / "protocol4.pt", pickle_protocol=4)
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(folder / "script.pt"))

    batches = [(torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))) for _ in range(8)]
    torch.save(batches, folder / "batches.pt")
    for name, make in OPTIMIZERS.items():
        torch.manual_seed(1)
        model = Net().double()  # what differs in float32 is rounding, which grows
        optimizer = make(model.parameters())
        train(model, optimizer, batches[:3])
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   folder / f"{name}.begun.pt")
        train(model, optimizer, batches[3:])
        torch.save(model.state_dict(), folder / f"{name}.done.pt")


def continue_run(folder):
    """Goes on where C++ stopped, and compares with where C++ went."""
    batches = torch.load(folder / "batches.pt", weights_only=True)
    for name, make in OPTIMIZERS.items():
        begun = torch.load(folder / f"{name}.cpp_begun.pt", weights_only=True)
        model = Net().double()
        optimizer = make(model.parameters())
        for group in optimizer.param_groups:
            group["lr"] = 123  # the file's counts
        model.load_state_dict(begun["model"])
        optimizer.load_state_dict(begun["optimizer"])
        train(model, optimizer, batches[3:])
        done = torch.load(folder / f"{name}.cpp_done.pt", weights_only=True)
        for key, value in model.state_dict().items():
            difference = (value.double() - done[key].double()).norm()
            limit = 1e-6 * max(float(done[key].double().norm()), 1.0)
            assert difference <= limit, f"{name}: {key}: {difference} above {limit}"
    values = torch.load(folder / "values.pt", weights_only=True)
    assert values["text"] == "\u00fcber" and values["big"] == -2**40 and values["none"] is None
    assert values["list"] == [1, 2.5, True, (False, "x")], values["list"]
    assert values["a"].data_ptr() == values["b"].data_ptr()
    assert torch.equal(values["t"], torch.arange(6).reshape(2, 3).t())
    for name in ("uint16", "uint32", "uint64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2"):
        assert same_bytes(values["of " + name], numbers(name)), name
    assert torch.equal(values["conjugate"], values["complex"].conj())
    assert values["scalar"].shape == () and values["empty"].shape == (0, 4)


def exchange_safetensors(folder):
    from safetensors import safe_open
    from safetensors.torch import load_model, save_file, save_model

    expected = torch.load(folder / "expected.pt", weights_only=True)
    with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert file.metadata()["epoch"] == "3" and file.metadata()["note.seed"] == "7"
        for name, tensor in expected.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype and torch.equal(found, tensor), name
        assert "optimizer/first.weight/momentum_buffer" in names, names
        torch.set_rng_state(file.get_tensor("rank/0/random"))
        assert torch.equal(torch.randn(5), torch.load(folder / "draw.pt", weights_only=True))
    names = [name for name in DTYPES if name not in ("complex128", "complex32", "float8_e4m3fnuz", "float8_e5m2fnuz")]
    dtypes = {name: numbers(name) for name in names}
    with safe_open(folder / "dtypes.safetensors", framework="pt") as file:
        assert file.get_tensor("empty").shape == (0, 4)
        for name, tensor in dtypes.items():
            assert same_bytes(file.get_tensor(name), tensor), name
    save_file({"x": torch.arange(6).reshape(2, 3).float(),
               "h": torch.ones(3, dtype=torch.bfloat16), **dtypes},
              folder / "python.safetensors", metadata={"who": "python"})

    model = torch.nn.Module()
    model.first = model.again = torch.nn.Linear(3, 3)
    model.tied = model.same = torch.nn.Parameter(torch.zeros(2))
    load_model(model, folder / "tied.safetensors")
    expected = torch.load(folder / "tied_state.pt", weights_only=True)
    assert set(expected) == set(model.state_dict()), expected.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    save_model(model, folder / "python_tied.safetensors")


folder = pathlib.Path(sys.argv[2])
actions = {"write": write, "continue": continue_run, "safetensors": exchange_safetensors}
try:
    actions[sys.argv[1]](folder)
except ImportError as error:
    print(error)
    sys.exit(77)
