"""Compilers and ctags find the names of the project: tools/compile-alone, .ctags.d."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from tool import ROOT, load, write

TYPE = re.compile(r"^\s*(?:class|struct|enum class|enum) (\w+)(?: final)?(?: : [\w:<>, ]+)? \{", re.M)


class Names(unittest.TestCase):
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


class CompileAlone(unittest.TestCase):
    def test_missing_include(self):
        tool = load("compile-alone")
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            lacking = "std::string text;\n"
            write(root, {"complete.cpp": "#include <string>\n" + lacking, "lacking.cpp": lacking, "other/lacking.cpp": lacking})
            files = [root / "complete.cpp", root / "lacking.cpp", root / "other" / "lacking.cpp"]
            (root / "compile_commands.json").write_text(json.dumps(
                [{"directory": name, "file": str(path), "command": f"g++ -o made.o -c {path}"} for path in files]))
            found = tool.commands(root, [root / "complete.cpp", root / "lacking.cpp"])
            errors = dict(tool.compile_each(found, 2))
            self.assertEqual(sorted(errors), files[:2])
            self.assertIsNone(errors[files[0]])
            self.assertIn("string", errors[files[1]])
            self.assertFalse((root / "made.o").exists())


if __name__ == "__main__":
    unittest.main()
