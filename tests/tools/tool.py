"""How the tests run the tools over files of their own."""

import contextlib
import functools
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest.mock

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


@functools.cache
def loaded(name):
    return load(name)


def run(name, *arguments):
    """Exit status and output of the tool's main() in this process: an interpreter takes longer to start than most tools run."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), \
            unittest.mock.patch.object(sys, "argv", [name, *map(str, arguments)]):
        try:
            code = loaded(name).main()
        except SystemExit as end:
            code = end.code
    if isinstance(code, str):  # sys.exit() prints a text, and exits with 1
        return 1, output.getvalue() + code
    return int(code or 0), output.getvalue()


def check(name, files):
    """Exit status and output of the tool over these files."""
    with tempfile.TemporaryDirectory() as root:
        write(root, files)
        return run(name, root)
