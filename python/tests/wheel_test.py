"""The wheel, installed by pip into a fresh environment, trains the first program of docs/guides/python.md under torchrun."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch

import lockstep_torch

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


@unittest.skipUnless(importlib.util.find_spec("pip"), "this Python has no pip")
class WheelTest(unittest.TestCase):
    def test_install_and_train(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            wheel = run(sys.executable, SOURCE / "python" / "make_wheel.py", "--package", pathlib.Path(lockstep_torch.__file__).parent,
                        "--version", lockstep_torch.__version__, "--torch", torch.__version__, "--output", folder).strip()
            run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
            python = folder / "venv" / "bin" / "python"
            # PyTorch as it is installed here: a copy has a gigabyte.
            packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
            (pathlib.Path(packages) / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
            # pip finds the PyTorch that the wheel requires, or ends with an error.
            run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--disable-pip-version-check", wheel)

            guide = (SOURCE / "docs" / "guides" / "python.md").read_text()
            program = re.search(r"## A program\n\n```python\n(.*?)```", guide, re.DOTALL)[1]
            # One write a rank: print() writes its arguments one by one, and those of two ranks mix.
            (folder / "program.py").write_text(
                program + "import os\nos.write(1, f'trained by {lockstep_torch.__file__} {dist.is_initialized()}\\n'.encode())\n")
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            output = run(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, folder / "program.py",
                         env=environment, cwd=folder)
            self.assertEqual(output.count(f"trained by {packages}/lockstep_torch/__init__.py False"), 2, output)


if __name__ == "__main__":
    unittest.main()
