"""Counts made-up trees with tools/measure-size."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from tool import ROOT, write

MEASURE = ROOT / "tools" / "measure-size"
STYLE = (ROOT / ".clang-format").read_text()

CPP = """#pragma once

#include <string>

// A comment
// of two lines.
namespace lockstep::inline v0_2::detail {

/* Another
   one. */
inline std::string text() {
  const char* address = "http://host";  // at the end of a line
  auto raw = R"(
// no comment
)";
  return address + std::to_string(1'000'000);
}

}  // namespace lockstep::detail
"""
CPP_COUNT = (19, 6, 6)  # lines, code lines, lines with a comment
PYTHON = '''#!/usr/bin/env python3
"""What the file does."""

import sys
from os import path


def first(text):
    """What the function does,
    in two lines."""
    # A comment.
    return text.split("#")[0] if text else (
        None
    )
'''
PYTHON_COUNT = (14, 3, 4)
CMAKE = """# A comment
set(text "#")
add_library(a
            b.cpp
)
"""
CMAKE_COUNT = (5, 3, 1)
BUDGET = """least_comments = 0
long_files = [{long}]
[code]
"src/core" = {code}
tools = 100
[sum]
"library lines" = 1000
"library code lines" = 1000
"library files" = 10
"tests lines" = 10
"words of the pages" = {words}
[target]
"library lines" = 1
"library code lines" = 1
"library files" = 1
"tests lines" = 1
"words of the pages" = 1
"""


def git(root, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


class MeasureSize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        write(self.root, {".clang-format": STYLE, "tools/size-budget.toml": BUDGET.format(code=100, words=100, long="")})

    def measure(self, *options):
        run = subprocess.run([sys.executable, "-B", MEASURE, "--root", self.root, *options], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    def row(self, folder, *options):
        """Files, lines, code lines, comments per 100 code lines and long files of the folder."""
        code, output = self.measure(*options)
        self.assertEqual(code, 0, output)
        rows = [line.split("|") for line in output.splitlines() if line.startswith(f"| {folder} |")]
        self.assertEqual(len(rows), 1, output)
        return [float(cell.replace(",", "")) for cell in rows[0][2:7]]

    def expect(self, folder, count):
        lines, code, comments = count
        self.assertEqual(self.row(folder), [1, lines, code, round(100 * comments / code, 1), 0])

    def test_languages(self):
        write(self.root, {"src/core/a.h": CPP, "python/tool": PYTHON, "bench/CMakeLists.txt": CMAKE,
                          "tests/corpus/odd.h": CPP, "docs/a.h": CPP})
        self.expect("src/core", CPP_COUNT)
        self.expect("python", PYTHON_COUNT)
        self.expect("bench", CMAKE_COUNT)
        write(self.root, {"python/tool": f"#!/usr/bin/env python3\ntext = '{'a' * 300}'\n"})
        self.assertEqual(self.row("python")[:3], [1, 2, 3])  # a long line counts more than once

    def test_a_commit_is_counted_as_the_tree(self):
        write(self.root, {"src/core/a.h": CPP, "src/core/b.cpp": CPP})
        git(self.root, "init", "-q")
        git(self.root, "add", ".")
        git(self.root, "commit", "-q", "-m", "first")
        before = self.row("src/core")
        write(self.root, {"src/core/b.cpp": "int b = 1;\n"})
        self.assertEqual(self.row("src/core", "--commit", "HEAD"), before)
        self.assertNotEqual(self.row("src/core"), before)

    def expect_offence(self, expected, **budget):
        budget = {"code": 100, "words": 100, "long": ""} | budget
        write(self.root, {"tools/size-budget.toml": BUDGET.format(**budget)})
        code, output = self.measure("--check")
        self.assertEqual(code, 1 if expected else 0, output)
        self.assertIn(expected or " 0 offences", output)

    def test_budgets(self):
        write(self.root, {"src/core/a.h": CPP, "docs/a.md": "four words stand here\n"})
        self.expect_offence(None)
        self.expect_offence("src/core: got 6 code lines, budget 5", code=5)
        self.expect_offence("words of the pages: got 4, budget 3", words=3)
        write(self.root, {"src/core/b.cpp": "\n" * 401})
        self.expect_offence("src/core/b.cpp: got 401 lines, expected at most 400")
        self.expect_offence(None, long='"src/core/b.cpp"')
        write(self.root, {"src/attic/a.h": CPP})
        self.expect_offence("src/attic: has no budget")


if __name__ == "__main__":
    unittest.main()
