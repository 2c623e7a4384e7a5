"""Editors and tools find the names of the project: compile_commands.json, and the settings of ctags."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPE = re.compile(r"^\s*(?:class|struct|enum class|enum) (\w+)(?: final)?(?: : [\w:<>, ]+)? \{", re.M)


class Names(unittest.TestCase):
    def test_cmake_writes_compile_commands(self):
        environment = {name: value for name, value in os.environ.items()
                       if name != "CMAKE_EXPORT_COMPILE_COMMANDS"}
        with tempfile.TemporaryDirectory() as build:
            run = subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DLOCKSTEP_WITH_TORCH=OFF",
                                  "-DLOCKSTEP_WITH_MPI=OFF", "-DLOCKSTEP_BUILD_TESTS=OFF"],
                                 env=environment, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
            self.assertTrue(any(entry["file"].endswith("src/comm/work.cpp") for entry in commands))

    def test_ctags_finds_the_types(self):
        ctags = shutil.which("ctags")
        if not ctags or "Universal Ctags" not in subprocess.run([ctags, "--version"], capture_output=True,
                                                                text=True).stdout:
            self.skipTest("needs Universal Ctags (Debian: universal-ctags)")
        listed = subprocess.run([ctags, "-R", "--languages=C++", "--kinds-C++=cgs", "-o", "-", "include", "src", "extras"],
                                cwd=ROOT, check=True, capture_output=True, text=True).stdout
        tags = {tuple(line.split("\t")[1::-1]) for line in listed.splitlines()}
        files = [path for folder in ("include", "src", "extras") for path in (ROOT / folder).rglob("*")
                 if path.suffix in (".h", ".cpp")]
        types = {(path.relative_to(ROOT).as_posix(), name) for path in files for name in TYPE.findall(path.read_text())}
        self.assertGreater(len(types), 500)
        self.assertEqual(sorted(types - tags), [])


if __name__ == "__main__":
    unittest.main()
