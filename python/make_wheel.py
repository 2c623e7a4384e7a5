#!/usr/bin/env python3
"""Writes a wheel of the built package: a zip file of the package and the files that describe it.

    make_wheel.py --package build/python/lockstep_torch --version 0.2.0 --torch 2.13.0 --output build
"""

import argparse
import ast
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
# Debian's packages of the libraries that the wheel contains.
CONTAINED = ("libhwy-dev", "libsodium-dev", "nlohmann-json3-dev")


def metadata(args, licenses):
    major, minor = args.torch.split(".")[:2]
    initial = ast.parse((args.package / "__init__.py").read_text())
    lines = ["Metadata-Version: 2.4", "Name: lockstep-torch", f"Version: {args.version}",
             "Summary: Lockstep's collectives as a backend of torch.distributed",
             *([f"Project-URL: Homepage, {args.url}"] if args.url else []),
             "License-Expression: Apache-2.0", *(f"License-File: {name}" for name in licenses),
             "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: C++",
             f"Requires-Python: =={sys.version_info.major}.{sys.version_info.minor}.*",
             f"Requires-Dist: torch>={major}.{minor},<{major}.{int(minor) + 1}",
             "Description-Content-Type: text/plain", "", ast.get_docstring(initial), ""]
    return "\n".join(lines).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch", required=True, help="version of PyTorch that the package was built with")
    parser.add_argument("--url", default="", help="the project's home page (default: none)")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    # The library needs no newer functions of the C library than this machine's has.
    tag = f"{python}-{python}-manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"
    info = f"lockstep_torch-{args.version}.dist-info"
    files = {f"lockstep_torch/{path.name}": path.read_bytes()
             for path in sorted(args.package.iterdir()) if path.suffix in (".py", ".so")}
    linked = subprocess.run(["ldd", *args.package.glob("*.so")], capture_output=True, text=True, check=True).stdout
    files |= {f"lockstep_torch/{name}": pathlib.Path(path).read_bytes()
              for name, path in re.findall(r"(lib(?:hwy|sodium)\.so\S*) => (\S+)", linked)}
    licenses = {"LICENSE": SOURCE / "LICENSE"} | {f"{name}.txt": pathlib.Path(f"/usr/share/doc/{name}/copyright") for name in CONTAINED}
    licenses = {name: path.read_bytes() for name, path in licenses.items() if path.exists()}
    files[f"{info}/METADATA"] = metadata(args, licenses)
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = b"".join(
        # PyTorch 2.13 calls those of the first group at `import torch`, 2.14 those of the second when a group is made.
        b"[%s]\nlockstep = lockstep_torch:_register\n" % group for group in (b"torch.backends", b"torch.distributed.backends"))
    files |= {f"{info}/licenses/{name}": text for name, text in licenses.items()}
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    wheel = args.output / f"lockstep_torch-{args.version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    print(wheel)


if __name__ == "__main__":
    main()
