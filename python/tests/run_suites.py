"""Runs further suites of PyTorch's tests over Lockstep and over gloo, side by side.

    PYTHONPATH=build/python python3 python/tests/run_suites.py --pytorch DIR [--two-hosts] [SUITE...]

DIR has PyTorch's sources, of the tag of the installed PyTorch; those of another version run as far as they fit. Each suite
runs in a process of its own, once with "gloo" in its calls replaced by "lockstep". Prints a table, and the tests that fail
over Lockstep only. Exits 1 if there is one. With --two-hosts, Lockstep's ranks are on two hosts that this machine simulates,
as root (tools/two-hosts), and Gloo's on one.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

# In DIR/test/distributed. Sources of one version have some of them.
SUITES = [
    "test_c10d_object_collectives.py", "algorithms/test_join.py", "algorithms/ddp_comm_hooks/test_ddp_hooks.py",
    "optim/test_zero_redundancy_optimizer.py", "tensor/test_dtensor.py", "tensor/test_redistribute.py",
    "tensor/parallel/test_tp_style.py", "tensor/parallel/test_tp_examples.py", "checkpoint/test_file_system_checkpoint_cpu.py",
    "checkpoint/test_state_dict.py", "_shard/checkpoint/test_file_system_checkpoint_cpu.py",
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--pytorch", type=pathlib.Path, required=True, metavar="DIR", help="folder of PyTorch's sources")
parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="longest time of one test (default: 60)")
parser.add_argument("--two-hosts", action="store_true", help="run Lockstep's ranks on two simulated hosts")
parser.add_argument("--run", choices=("lockstep", "gloo"), help=argparse.SUPPRESS)  # one suite, in this process
parser.add_argument("--json", help=argparse.SUPPRESS)
parser.add_argument("suites", nargs="*", metavar="SUITE", help="files in DIR/test/distributed (default: all that are known)")


def replace_gloo(dist):
    """Calls that name gloo get lockstep."""
    def replaced(function, position):
        def call(*arguments, **named):
            arguments = list(arguments)
            if len(arguments) > position and isinstance(arguments[position], str):
                arguments[position] = arguments[position].replace("gloo", "lockstep")
            if isinstance(named.get("backend"), str):
                named["backend"] = named["backend"].replace("gloo", "lockstep")
            return function(*arguments, **named)
        return call

    for name, position in (("init_process_group", 0), ("new_group", 2)):
        function = replaced(getattr(dist, name), position)
        setattr(dist, name, function)
        setattr(dist.distributed_c10d, name, function)


def run_here(path, backend, limit, two_hosts):
    """The outcome of one suite."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import pytorch_tests
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed

    import lockstep_torch  # noqa: F401: registers the backend

    torch.set_num_threads(1)
    common_distributed.TIMEOUT_DEFAULT = limit
    start = pytorch_tests.start_by(two_hosts)
    common_distributed.MultiProcessTestCase._spawn_processes = lambda test: test._start_processes(start)
    if backend == "lockstep":
        replace_gloo(dist)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return pytorch_tests.run(unittest.defaultTestLoader.loadTestsFromModule(module))


def run(path, backend, args):
    """The outcome of one suite in a process of its own; a text if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "outcome")
        done = subprocess.run([sys.executable, __file__, "--pytorch", args.pytorch, "--limit", str(args.limit), "--run", backend,
                               "--json", answer, path, *["--two-hosts"] * (args.two_hosts and backend == "lockstep")],
                              capture_output=True, text=True)
        if not os.path.exists(answer):
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return f"does not run with this PyTorch: {lines[-1] if lines else done.returncode}"
        with open(answer) as file:
            return json.load(file)


def main():
    args = parser.parse_args()
    if args.run:
        import pytorch_tests
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            two_hosts = pytorch_tests.hosts.TwoHosts(pathlib.Path(folder)) if args.two_hosts else None
            if two_hosts:
                stack.callback(two_hosts.close)
            outcome = run_here(pathlib.Path(args.suites[0]), args.run, args.limit, two_hosts)
        with open(args.json, "w") as file:
            json.dump(outcome, file)
        return 0
    folder = args.pytorch / "test" / "distributed"
    if not folder.is_dir():
        parser.error(f"got {args.pytorch}, expected a folder with test/distributed")
    worse = []
    print("| suite | Lockstep: passed, failed, skipped | gloo |\n|---|---|---|")
    for suite in args.suites or SUITES:
        if not (folder / suite).exists():
            print(f"| {suite} | not in these sources | |", flush=True)
            continue
        outcomes = [run(folder / suite, backend, args) for backend in ("lockstep", "gloo")]
        if isinstance(outcomes[1], str):
            print(f"| {suite} | {outcomes[1]} | |", flush=True)
            continue
        texts = [one if isinstance(one, str) else ", ".join(str(len(one[kind])) for kind in ("passed", "failed", "skipped"))
                 for one in outcomes]
        print(f"| {suite} | {texts[0]} | {texts[1]} |", flush=True)
        failed = outcomes[0]["failed"] if isinstance(outcomes[0], dict) else ["the suite"]
        worse += [f"{suite}: {test}" for test in failed if test not in outcomes[1]["failed"]]
    print("\n".join(["", "Failed over Lockstep only:", *worse] if worse else ["", "No test fails over Lockstep only."]))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
