"""The wheel, installed by pip into a fresh environment, trains the first program of docs/guides/python.md under torchrun."""

import email
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

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
                        "--version", lockstep_torch.__version__, "--torch", torch.__version__, "--url", "https://lockstep.example",
                        "--output", folder).strip()
            self.check_content(pathlib.Path(wheel))
            run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
            python = folder / "venv" / "bin" / "python"
            # PyTorch as it is installed here: a copy has a gigabyte.
            packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
            (pathlib.Path(packages) / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
            # pip finds the PyTorch that the wheel requires, or ends with an error.
            run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--disable-pip-version-check", wheel)

            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self.check_registration(python, packages, {"env": environment, "cwd": folder})

            guide = (SOURCE / "docs" / "guides" / "python.md").read_text()
            program = re.search(r"## A program\n\n```python\n(.*?)```", guide, re.DOTALL)[1]
            # One write a rank: print() writes its arguments one by one, and those of two ranks mix.
            (folder / "program.py").write_text(
                program + "import os\nos.write(1, f'trained by {lockstep_torch.__file__} {dist.is_initialized()}\\n'.encode())\n")
            output = run(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, folder / "program.py",
                         env=environment, cwd=folder)
            self.assertEqual(output.count(f"trained by {packages}/lockstep_torch/__init__.py False"), 2, output)

    def check_content(self, wheel):
        """The library needs PyTorch, libhwy and libsodium beside it, and the C and C++ libraries of the platform tag."""
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            info = f"lockstep_torch-{lockstep_torch.__version__}.dist-info"
            metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
            library = archive.extract(next(name for name in names if name.endswith(".so")), wheel.parent)
            self.assertIn(f"Tag: {'-'.join(wheel.stem.split('-')[2:])}\n", archive.read(f"{info}/WHEEL").decode())
        self.assertLess(wheel.stat().st_size, 3_000_000)
        dynamic = run("readelf", "--dynamic", "--version-info", library)
        self.assertEqual(re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic), ["$ORIGIN"])
        carried = {"libhwy.so.1", "libsodium.so.23"}
        self.assertLessEqual({f"lockstep_torch/{name}" for name in carried}, set(names))
        torch_libraries = {"libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so"}
        system = carried | {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"}
        self.assertLessEqual(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)), torch_libraries | system)
        newest = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", dynamic))
        self.assertLessEqual(newest, int(re.search(r"-manylinux_2_(\d+)_x86_64$", wheel.stem)[1]))
        self.assertEqual([metadata[name] for name in ("Name", "Version", "License-Expression", "Project-URL", "Requires-Python")],
                         ["lockstep-torch", lockstep_torch.__version__, "Apache-2.0", "Homepage, https://lockstep.example",
                          "==%d.%d.*" % sys.version_info[:2]])
        self.assertRegex(metadata["Requires-Dist"], r"^torch>=2\.\d+,<2\.\d+$")
        self.assertIn("torch.distributed", metadata.get_payload())
        self.assertIn("LICENSE", metadata.get_all("License-File"))
        for name in metadata.get_all("License-File"):
            self.assertIn(f"{info}/licenses/{name}", names)

    def check_registration(self, python, packages, options):
        """PyTorch finds the backend by its name, and loads its library with the first group."""
        program = """
import sys, torch, torch.distributed as dist
before = "lockstep_torch._backend" in sys.modules
dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
print(before, dist.get_backend(), "lockstep_torch._backend" in sys.modules)
dist.destroy_process_group()
"""
        self.assertIn("False lockstep True", run(python, "-c", program, **options))
        # PyTorch then calls the entry point while this module is being imported.
        run(python, "-c", "import lockstep_torch; " + program.strip().replace("\n", "; "), **options)
        off = options | {"env": options["env"] | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}}
        registers = """
import importlib.metadata, sys, torch
assert "lockstep_torch" not in sys.modules
entry, = (each for each in importlib.metadata.entry_points(group="torch.backends") if each.name == "lockstep")
before = set(sys.modules)
entry.load()()
print("imports", *sorted(set(sys.modules) - before))
"""
        imports = run(python, "-c", registers, **off).split("imports ")[1].split()
        self.assertEqual(imports, ["lockstep_torch", "lockstep_torch._versions", "lockstep_torch.env_rendezvous"])
        # A library that cannot be loaded is an error of the group alone.
        library, = (pathlib.Path(packages) / "lockstep_torch").glob("_backend*.so")
        hidden = library.with_suffix(".hidden")
        library.rename(hidden)
        broken = program.replace('dist.init_process_group("lockstep"', 'dist.init_process_group(sys.argv[1]')
        self.assertIn("False gloo False", run(python, "-c", broken, "gloo", **options))
        with self.assertRaisesRegex(AssertionError, "ImportError: .*_backend"):
            run(python, "-c", broken, "lockstep", **options)
        hidden.rename(library)


if __name__ == "__main__":
    unittest.main()
