"""The C interface: its functions on several ranks, failures, and the examples in C, Fortran and Python.

    c_test.py BUILD SOURCE
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
LIBRARY = BUILD / "src" / "liblockstep_c.so"
PROGRAMS = BUILD / "bin"


def start(*words):
    return subprocess.run([PROGRAMS / "lockstep", "run", *map(str, words)], text=True, capture_output=True, timeout=100,
                          stdin=subprocess.DEVNULL)


def run(ranks, *command):
    return start("-n", ranks, *command)


class Functions(unittest.TestCase):
    def test_each_on_several_ranks(self):
        for ranks in (1, 2, 3, 7):
            with self.subTest(ranks=ranks):
                result = run(ranks, PROGRAMS / "c_rank_program", "all")
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_export_nothing_else(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], text=True, capture_output=True, check=True).stdout
        names = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
        names.discard("LOCKSTEP_C_1")
        self.assertEqual({name for name in names if not name.startswith("lockstep_")}, set())
        header = (SOURCE / "include" / "lockstep_c.h").read_text()
        self.assertEqual({name for name in names if f" {name}(" not in header and f"* {name}(" not in header}, set())
        self.assertLessEqual(len(names), 40)


class Failures(unittest.TestCase):
    def test_the_cause_is_told_on_all_ranks(self):
        result = run(3, PROGRAMS / "c_rank_program", "fail")
        self.assertEqual(result.stdout.count("rank 1: barrier #1"), 2, result)
        self.assertEqual(result.stdout.count("the mesh is empty"), 2, result)

    def test_a_rank_that_leaves(self):
        result = run(2, PROGRAMS / "c_rank_program", "leave")
        self.assertIn("rank 1: barrier #1", result.stdout)

    def test_a_rank_that_repeats_the_failure_is_not_the_cause(self):
        with tempfile.TemporaryDirectory() as folder:
            ssh = pathlib.Path(folder) / "ssh"
            ssh.write_text("#!/bin/sh\nshift\nLOCKSTEP_HOST=second exec sh -c \"$*\"\n")
            ssh.chmod(0o755)
            two_hosts = ("--ssh", ssh, "--hosts", "localhost:2,localhost:1")
            for how, cause, code in (("killed", "it was ended by SIGKILL", 137), ("erred", "it ended with exit code 3", 3)):
                for places in (("-n", "3"), two_hosts):
                    with self.subTest(how=how, places=places):
                        result = start(*places, PROGRAMS / "c_rank_program", how)
                        self.assertIn(f"rank 2 of 3 failed first: {cause}", result.stderr)
                        self.assertEqual(result.returncode, code, result.stderr)


class Examples(unittest.TestCase):
    def test_end_in_the_same_bits(self):
        commands = {"C": [PROGRAMS / "c_train"], "Python": [sys.executable, SOURCE / "examples/c/train.py", LIBRARY]}
        if (PROGRAMS / "fortran_train").exists():
            commands["Fortran"] = [PROGRAMS / "fortran_train"]
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                digests = {}
                for language, command in commands.items():
                    path = os.path.join(folder, language)
                    result = run(ranks, *command, path)
                    self.assertEqual((result.returncode, result.stderr), (0, ""), language)
                    self.assertIn(f"after 50 steps on {ranks} rank", result.stdout)
                    content = pathlib.Path(path).read_bytes()
                    self.assertEqual(len(content), 8 * (16 * 8 + 16 + 16 + 1))
                    digests[language] = hashlib.sha256(content).hexdigest()
                self.assertEqual(len(set(digests.values())), 1, digests)

    def test_a_disk_that_is_full(self):
        result = run(2, PROGRAMS / "c_train", "/dev/full")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("train: rank 0: cannot write the parameters", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
