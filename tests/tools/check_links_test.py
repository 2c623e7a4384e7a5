"""Writes pages with one bad link at a time and expects tools/check-links to name it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "check-links"


def check(files: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        run = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


class CheckLinks(unittest.TestCase):
    def expect_offence(self, link: str, reason: str) -> None:
        code, output = check({"docs/page.md": f"# Page\n\ntext\n{link}\n", "docs/other.md": "# Other page\n"})
        self.assertEqual(code, 1, output)
        self.assertIn("docs/page.md:4: link", output)
        self.assertIn(reason, output)

    def test_missing_files(self):
        self.expect_offence("[a](nowhere.md)", "'nowhere.md' names no file")
        self.expect_offence("![a](picture.svg)", "names no file")
        self.expect_offence('<img alt="a" src="picture.svg">', "names no file")
        self.expect_offence("[a]: nowhere.md", "names no file")

    def test_missing_anchors(self):
        self.expect_offence("[a](#nowhere)", "names no heading of docs/page.md")
        self.expect_offence("[a](other.md#page)", "names no heading of docs/other.md")

    def test_targets_that_no_site_can_serve(self):
        self.expect_offence("[a](/docs/other.md)", "is absolute")
        self.expect_offence("[a](../../other.md)", "leaves the repository")
        self.expect_offence("[a]()", "is empty")

    def test_pages_that_sources_name(self):
        code, output = check({"src/a.h": "\n/// docs/page.md#nowhere says more.\n", "docs/page.md": "# Page\n"})
        self.assertEqual(code, 1)
        self.assertIn("src/a.h:2: link 'docs/page.md#nowhere' names no heading", output)

    def test_nothing_to_check(self):
        self.assertEqual(check({"src/a.h": ""})[0], 1)

    def test_what_is_allowed(self):
        code, output = check({
            "README.md": "# A `name`, and *more*: 2\n\n## Twice\n\n## Twice\n\n"
                         "[a](#a-name-and-more-2) [b\nb](#twice-1) [c](docs) [d](src/a.h#L2)\n"
                         "[e](https://example.com/x#y) [f](docs/page.md#ünder)\n\n"
                         "    [code](nowhere.md)\n\n```\n[code](nowhere.md)\n```\n\n`[code](nowhere.md)`\n",
            "docs/page.md": "# Ünder\n\n<a id=\"named\"></a>\n[a](../README.md) [b](#named)\n",
            "src/a.h": "\n// docs/page.md#named\n",
            "build/page.md": "[a](nowhere.md)\n",
        })
        self.assertEqual(code, 0, output)
        self.assertIn("2 pages, 0 offences", output)


if __name__ == "__main__":
    unittest.main()
