"""The programs of python/recipes, under the frameworks that they are for: on 2 ranks the same parameters as over Gloo. A
program whose framework is not installed is skipped. tools/check-recipes installs all of them."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

RECIPES = pathlib.Path(__file__).resolve().parents[1] / "recipes"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def missing(*packages):
    """Those that are not installed. With a wheel, PyTorch finds the backend by its name in every process."""
    installed = {re.sub("[-_.]+", "-", each.name).lower() for each in importlib.metadata.distributions()}
    return [package for package in ("lockstep-torch", *packages) if package not in installed]


def trained(program, backend):
    """The parameters that the program writes, with another backend in place of "lockstep"."""
    text = (RECIPES / program).read_text()
    if not dist.is_nccl_available():
        text = text.replace("cuda:nccl", "cuda:gloo")
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, program).write_text(text.replace("lockstep", backend))
        # Ray writes to these folders, and sends statistics unless told otherwise.
        environment = os.environ | {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
                                    "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        launcher = TORCHRUN if ": torchrun " in text.splitlines()[0] else []
        done = subprocess.run([sys.executable, *launcher, program], cwd=folder, env=environment, text=True, timeout=300,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"{program} over {backend} ended with {done.returncode}:\n{done.stdout}")
        return torch.load(pathlib.Path(folder, "trained.pt"))


# The packages that each program needs.
PROGRAMS = {"lightning_trainer.py": ["lightning"], "lightning_fabric.py": ["lightning"], "accelerate_loop.py": ["accelerate"],
            "transformers_trainer.py": ["transformers", "accelerate"], "ray_train.py": ["ray", "pandas", "pyarrow"],
            "cpu_and_cuda.py": []}


class RecipesTest(unittest.TestCase):
    def test_parameters(self):
        self.assertEqual(sorted(PROGRAMS), sorted(path.name for path in RECIPES.glob("*.py")))
        for program, packages in PROGRAMS.items():
            with self.subTest(program):
                if absent := missing(*packages):
                    self.skipTest(f"{program} needs {' and '.join(absent)}, not installed; tools/check-recipes installs all")
                got, expected = trained(program, "lockstep"), trained(program, "gloo")
                self.assertEqual(got.keys(), expected.keys())
                for name, values in expected.items():
                    self.assertTrue(torch.equal(got[name], values), f"{name}: got {got[name]}, expected {values}")


if __name__ == "__main__":
    unittest.main()
