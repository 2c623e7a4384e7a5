"""How the tests run the tools over files of their own."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def load(name):
    """The tool as a module."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def write(root, files):
    for name, text in files.items():
        path = pathlib.Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check(name, files):
    """Exit status and output of the tool over these files."""
    with tempfile.TemporaryDirectory() as root:
        write(root, files)
        run = subprocess.run([sys.executable, ROOT / "tools" / name, root], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr
