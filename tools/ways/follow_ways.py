"""Builds Lockstep with a hook in every function, follows the three ways and lists their files.

    tools/measure-size --ways BUILD

gradient  two ranks train: from the begin of a backward, before its first hook, until backward() returns.
          Each rank is late in turn, so that the other sleeps.
run       `lockstep run` of two ranks: the launcher from run() of cli/run.cpp, which gets the parsed command line,
          until it returns, and the ranks from run_main() until the function of the rank begins.
death     rank 1 gets SIGKILL while rank 0 waits: rank 0 until it exits, the launcher until run() returns.

A file is on a way if one of its functions is called. Builds are not optimised, so that no function is inlined.
"""

import collections
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
WAYS = {"gradient": 0, "run": 0, "death": 137}  # and the exit code of the launcher
LAUNCHER = "lockstep::cli::(anonymous namespace)::run(lockstep::cli::(anonymous namespace)::RunArguments&"
PROJECT = ("src", "include", "extras", "cli")
PROGRAM_LENGTH = 4096  # of a record in recorder.cpp


# addr2line 2.40 names the wrong file for the first line of a header in DWARF 5.
FLAGS = "-O0 -g1 -gdwarf-4 -DHWY_COMPILE_ONLY_STATIC"


def build(folder, root):
    torch = subprocess.run([root / "tools" / "bootstrap", "build"], check=True, capture_output=True, text=True)
    subprocess.run(["cmake", "-S", HERE, "-B", folder, "-G", "Ninja", f"-DLOCKSTEP_SOURCE={root}",
                    f"-DTorch_DIR={torch.stdout.strip()}", "-DCMAKE_BUILD_TYPE=Debug",
                    f"-DCMAKE_CXX_FLAGS_DEBUG={FLAGS}"], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", folder, "--parallel", str(os.cpu_count()), "--target", "ways_recorder", "ways_program",
                    "lockstep_cli"], check=True, stdout=sys.stderr)


def address_of(program, function):
    """The address of the function whose demangled name begins so."""
    symbols = subprocess.run(["nm", "-C", program], check=True, capture_output=True, text=True).stdout.splitlines()
    found = [line.split(" ", 2)[0] for line in symbols if line.split(" ", 2)[-1].startswith(function)]
    if len(found) != 1:
        sys.exit(f"measure-size: {program} has {len(found)} functions {function}, expected 1")
    return found[0]


def run(command, recorder, records, from_start="", within=""):
    """Runs the command with the recorder, and returns its exit code and output.

    from_start: the program that records from its start. within: PROGRAM:ADDRESS, the function in which a program records.
    """
    environment = os.environ | {"LD_PRELOAD": str(recorder), "LOCKSTEP_WAYS": str(records),
                                "LOCKSTEP_WAYS_FROM_START": from_start, "LOCKSTEP_WAYS_WITHIN": within}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.returncode, ended.stdout


def called(records):
    """The addresses of the functions that each program called."""
    functions = collections.defaultdict(set)
    for path in pathlib.Path(records).glob("*.record"):
        content = path.read_bytes()
        program = content[:PROGRAM_LENGTH].split(b"\0", 1)[0].decode()
        for (address,) in struct.iter_unpack("=Q", content[PROGRAM_LENGTH:]):
            if address:
                functions[program].add(address)
    return functions


def files_of(program, addresses, root):
    """The project's files in which the functions are defined."""
    lines = subprocess.run(["addr2line", "-e", program], input="\n".join(map(hex, addresses)), check=True,
                           capture_output=True, text=True).stdout.splitlines()
    found = set()
    for line in lines:
        path = pathlib.Path(os.path.normpath(line.rsplit(":", 1)[0]))
        if path.is_relative_to(root):
            name = path.relative_to(root)
            if name.parts[0] in PROJECT:
                found.add(name.as_posix())
    return found


def follow(folder, root):
    """Builds, runs each way and prints its files."""
    build(folder, root)
    launcher = folder / "lockstep" / "cli" / "lockstep"
    within = f"lockstep:{address_of(launcher, LAUNCHER)}"
    for way, expected in WAYS.items():
        with tempfile.TemporaryDirectory() as records:
            code, output = run([launcher, "run", "-n", "2", folder / "ways_program", way],
                               folder / "libways_recorder.so", records, "lockstep" if way == "run" else "", within)
            if code != expected:
                sys.exit(f"measure-size: {way}: the launcher ended with {code}, expected {expected}:\n{output}")
            found = {pathlib.Path(program).name: files_of(program, addresses, root)
                     for program, addresses in called(records).items()}
        files = set().union(*found.values())
        parts = ", ".join(f"{program} {len(names)}" for program, names in sorted(found.items()))
        print(f"{way}: {len(files)} files ({parts})")
        for name in sorted(files):
            print(f"  {name}")
