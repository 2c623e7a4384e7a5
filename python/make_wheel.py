#!/usr/bin/env python3
"""Writes a wheel of the built package: a zip file of the package and three files about it.

    make_wheel.py --package build/python/lockstep_torch --version 0.2.0 --torch 2.13.0 --output build
"""

import argparse
import base64
import hashlib
import pathlib
import sys
import sysconfig
import zipfile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch", required=True, help="version of PyTorch that the package was built with")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    major, minor = args.torch.split(".")[:2]
    info = f"lockstep_torch-{args.version}.dist-info"
    files = {f"lockstep_torch/{path.name}": path.read_bytes()
             for path in sorted(args.package.iterdir()) if path.suffix in (".py", ".so")}
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: lockstep-torch\nVersion: {args.version}\n"
        "Summary: Lockstep's collectives as a backend of torch.distributed\n"
        f"Requires-Python: =={sys.version_info.major}.{sys.version_info.minor}.*\n"
        f"Requires-Dist: torch>={major}.{minor},<{major}.{int(minor) + 1}\n").encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = b"".join(
        # PyTorch 2.13 calls those of the first group at `import torch`, 2.14 those of the second when a group is made.
        b"[%s]\nlockstep = lockstep_torch:_register\n" % group for group in (b"torch.backends", b"torch.distributed.backends"))
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
