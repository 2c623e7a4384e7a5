"""Runs tools/bootstrap with a stand-in for Python, and looks at what it says and at what pip would get."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from tool import ROOT

TOOLS = ["bash", "cat", "chmod", "cp", "dirname", "grep", "head", "mkdir", "sed"]

# Has no torch. `python3 -m venv DIR` copies it to DIR/bin/python. `pip install` makes a folder like torch's.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-m venv "*)
    mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"
    cp "$0" "$3/bin/python"
    ;;
  "-m pip install --dry-run "*)
    echo "pip $*" >>"$CALLS"
    echo "Collecting torch"
    echo "Would install $WOULD_INSTALL"
    ;;
  "-m pip install "*)
    echo "pip $*" >>"$CALLS"
    site=$(dirname "$0")/../lib/python3.11/site-packages
    mkdir -p "$site/torch/share/cmake/Torch" "$site/torch-2.13.0.dist-info"
    echo "__version__ = '2.13.0'" >"$site/torch/version.py"
    echo >"$site/torch/share/cmake/Torch/TorchConfig.cmake"
    if [[ "$*" == *torch===* ]]; then mkdir "$site/torch/lib" && echo >"$site/torch/lib/libtorch_cuda.so"; fi
    echo >"$site/torch-2.13.0.dist-info/RECORD"
    ;;
esac
"""


def programs(folder: str) -> pathlib.Path:
    """A folder of the programs that the tool may use."""
    made = pathlib.Path(folder) / "bin"
    made.mkdir()
    for tool in TOOLS:
        (made / tool).symlink_to(shutil.which(tool))
    return made


class Bootstrap(unittest.TestCase):
    def bootstrap(self, would_install: str, needs: str = "build", **variables: str) -> tuple[str, list[str]]:
        """What it says, and the calls of pip."""
        with tempfile.TemporaryDirectory() as folder:
            python = programs(folder) / "python3"
            python.write_text(PYTHON)
            python.chmod(0o755)
            calls = pathlib.Path(folder) / "calls"
            environment = {"PATH": str(python.parent), "LOCKSTEP_VENV": f"{folder}/venv", "CALLS": str(calls),
                           "WOULD_INSTALL": would_install, **variables}
            run = subprocess.run([ROOT / "tools" / "bootstrap", needs], env=environment, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(run.stdout, f"{folder}/venv/lib/python3.11/site-packages/torch/share/cmake/Torch\n")
            return run.stderr, calls.read_text().splitlines()

    def test_a_build_with_cuda_is_announced_with_its_size_before_the_download(self):
        said, calls = self.bootstrap("nvidia-cublas-13.0 torch-2.13.0")
        before, _, _ = said.partition("installing torch==2.13.0")
        self.assertRegex(before, r"no CPU build of torch==2.13.0: pip will download about \d+(\.\d)? GB")
        self.assertIn("LOCKSTEP_TORCH_INDEX=URL", before)
        self.assertIn("--dry-run", calls[0])
        self.assertEqual(len(calls), 2)

    def test_a_build_for_cpu_is_not_announced(self):
        said, _ = self.bootstrap("networkx-3.6 torch-2.13.0+cpu")
        self.assertNotIn("CUDA", said)

    def test_gpus_get_the_build_with_cuda(self):
        said, calls = self.bootstrap("nvidia-cublas-13.0 torch-2.13.0", needs="cuda")
        self.assertRegex(said, r"pip will download about \d+(\.\d)? GB")
        self.assertIn("torch===2.13.0", calls[0])
        self.assertEqual(len(calls), 1)

    def test_gpus_refuse_a_libtorch_without_cuda(self):
        with tempfile.TemporaryDirectory() as folder:
            torch = pathlib.Path(folder) / "share" / "cmake" / "Torch"
            torch.mkdir(parents=True)
            (torch / "TorchConfig.cmake").touch()
            run = subprocess.run([ROOT / "tools" / "bootstrap", "cuda"], capture_output=True, text=True,
                                 env={"PATH": str(programs(folder)), "Torch_DIR": str(torch)})
            self.assertEqual(run.returncode, 1)
            self.assertIn("got LibTorch without CUDA", run.stderr)

    def test_the_variable_names_another_index(self):
        _, calls = self.bootstrap("torch-2.13.0+cpu", LOCKSTEP_TORCH_INDEX="file:///some/index")
        for call in calls:
            self.assertIn("torch==2.13.0 --index-url file:///some/index", call)

    def test_readme_and_docs_name_the_version_that_is_installed(self):
        text = (ROOT / "tools" / "bootstrap").read_text()
        version = text.split("wanted=torch==")[1].split()[0]
        for page in ("README.md", "docs/guides/install.md"):
            self.assertIn(f"LibTorch {version}", (ROOT / page).read_text(), page)


if __name__ == "__main__":
    unittest.main()
