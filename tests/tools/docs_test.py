"""Checks what docs/site makes of small headers and pages."""

import pathlib
import runpy
import shutil
import sys
import tempfile
import unittest

from tool import ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))
API = runpy.run_path(str(ROOT / "docs" / "site" / "api.py"))
FIT = runpy.run_path(str(ROOT / "docs" / "site" / "fit.py"))
STAGE = runpy.run_path(str(ROOT / "docs" / "site" / "stage.py"))


class Api(unittest.TestCase):
    def page_of(self, header):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.h").write_text(header, encoding="utf-8")
            return API["pages"](pathlib.Path(folder))["a.md"]

    def test_declarations_and_their_comments(self):
        page = self.page_of("#pragma once\n\nnamespace lockstep::inline v0_2 {\n\n/// A class. Throws: nothing.\nclass A {\n public:\n"
                            "  /// Gets <b>.\n  int b() const { return b_; }\n\n private:\n  int b_ = 0;\n};\n\n"
                            "namespace detail {\nint hidden();\n}  // namespace detail\n\n"
                            "/// Some facts.\nstruct Facts {\n  int c = 0;  ///< the first\n};\n\n"
                            "/// Works:\n///\n///     f(1);\n///\ntemplate <class T>\nvoid f(T value);\n\n}  // namespace lockstep\n")
        for text in ("## A\n\n```cpp\nclass A;\n```\n\nA class.", "**Throws:** nothing.", "### b\n\n```cpp\nint b() const;\n```\n\nGets &lt;b&gt;.",
                     "struct Facts {\n  int c = 0;  ///< the first\n};", "## f\n\n```cpp\ntemplate <class T>\nvoid f(T value);",
                     "```cpp\nf(1);\n```"):
            self.assertIn(text, page)
        self.assertNotIn("hidden", page)
        self.assertNotIn("b_", page)

    def test_every_public_header_has_a_page(self):
        folders = (ROOT / "include" / "lockstep", ROOT / "extras" / "include" / "lockstep")
        pages = API["pages"](*folders)
        for header in (path for folder in folders for path in folder.glob("*.h")):
            if header.name not in ("lockstep.h", "extras.h"):  # include the others
                self.assertIn(f"]({header.stem}.md)", pages["README.md"])
        self.assertIn("Link `Lockstep::extras`.", pages["datasets.md"])
        self.assertNotIn("Link `Lockstep::extras`.", pages["samplers.md"])


@unittest.skipUnless(shutil.which("chromium-headless-shell"), "needs a browser")
class Fit(unittest.TestCase):
    def test_a_table_that_is_cut_is_found(self):
        with tempfile.TemporaryDirectory() as site:
            for name, width in (("fits", 400), ("cut", 600)):
                page = f"<div style='overflow: auto'><table style='width: {width}px'><td>a cell</table></div>"
                pathlib.Path(site, name + ".html").write_text("<!DOCTYPE html><body style='margin: 0'>" + page, encoding="utf-8")
            found = FIT["tables_cut"]("chromium-headless-shell", pathlib.Path(site), 500)
            self.assertEqual(found, ["cut.html: 600 px in 500 px: a cell"])


class Stage(unittest.TestCase):
    def test_lists_are_indented_by_four(self):
        self.assertEqual(STAGE["indent_lists"]("- a\n  b\n\n  | c |\n\ntext\n  d"), "- a\n    b\n\n    | c |\n\ntext\n  d")
        self.assertEqual(STAGE["indent_lists"]("1. a\n\n       code"), "1. a\n\n        code")

    def test_images_of_html_are_copied(self):
        stage = STAGE["Stage"](pathlib.Path("/nowhere"))
        text = '<source srcset="docs/images/peers-narrow.svg">\n<img alt="" src="docs/images/peers.svg">'
        self.assertEqual(stage.rewritten(ROOT / "README.md", text), text)
        self.assertLessEqual({ROOT / "docs" / "images" / name for name in ("peers.svg", "peers-narrow.svg")}, set(stage.waiting))


if __name__ == "__main__":
    unittest.main()
