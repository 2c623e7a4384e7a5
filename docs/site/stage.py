#!/usr/bin/env python3
"""Copies the pages of the site to where MkDocs reads them.

    docs/site/stage.py OUTPUT

OUTPUT gets every page that README.md leads to, at its place in the repository, so that relative links stay as they are. A link
to a source file or a folder gets a page of its own. docs/api has a page for each public header.
"""

import pathlib
import re
import runpy
import shutil
import sys

import api

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include" / "lockstep"
EXTRAS = ROOT / "extras" / "include" / "lockstep"
LINKS = runpy.run_path(str(ROOT / "tools" / "check-links"))
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".toml": "toml"}
COPIED = {".svg", ".png", ".jsonl"}  # as they are
TARGET = re.compile(r"(\]\(\s*)([^)\s]+)(\s*\))")
IMAGE = re.compile(r'<(?:img|source)\s[^>]*\b(?:src|srcset)="([^":]+)"')  # of a page of the root folder


def indent_lists(text):
    """Code hosts nest by two spaces what MkDocs nests by four."""
    lines, width = [], 0
    for line in text.split("\n"):
        item = re.match(r"([-*]|\d+\.) ", line)
        spaces = len(line) - len(line.lstrip(" "))
        if item:
            width = len(item[0])
        elif line and spaces == 0 and lines and not lines[-1]:
            width = 0
        lines.append(" " * (4 - width) + line if width and line and spaces >= width else line)
    return "\n".join(lines)


class Stage:
    def __init__(self, output):
        self.output = output
        self.done = set()
        self.waiting = [ROOT / "README.md"]

    def write(self, path, text):
        path = self.output / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def page_of(self, file):
        """The page that a link to a file or folder of the repository leads to."""
        if file in (HEADERS, EXTRAS):
            return ROOT / "docs" / "api" / "README.md"
        if file.is_dir():
            return file / "README.md"
        if file.suffix == ".md" or file.suffix in COPIED:
            return file
        return file.with_name(file.name + ".md")

    def link(self, page, target):
        """The link that a page of the site has in the place of target."""
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", target):
            return target
        file = (page.parent / path).resolve()
        self.waiting.append(file)
        there = self.page_of(file)
        if there == file:
            return target
        up = len(page.parent.relative_to(ROOT).parts)
        return "../" * up + there.relative_to(ROOT).as_posix() + (mark + anchor if file.suffix == ".md" else "")

    def rewritten(self, page, text):
        hidden = text
        for pattern in ("FENCE", "INDENTED", "CODE"):
            hidden = LINKS[pattern].sub(LINKS["blank"], hidden)
        self.waiting += [(page.parent / image).resolve() for image in IMAGE.findall(hidden)]
        pieces, end = [], 0
        for match in TARGET.finditer(hidden):
            pieces += [text[end:match.start(2)], self.link(page, match[2])]
            end = match.end(2)
        return indent_lists("".join(pieces) + text[end:])

    def add(self, file):
        name = file.relative_to(ROOT).as_posix()
        page = self.page_of(file)
        if file.is_dir():
            if page.exists():
                self.waiting.append(page)
            elif page.parent == file:  # a list of its files
                found = [path for path in sorted(file.iterdir()) if path.suffix in LANGUAGES or path.suffix == ".md"]
                self.waiting += found
                rows = [f"- [{path.name}]({self.page_of(path).name})\n" for path in found]
                self.write(f"{name}/README.md", f"# {name}\n\n" + "".join(rows))
        elif file.suffix == ".md":
            self.write(name, self.rewritten(file, file.read_text(encoding="utf-8")))
        elif page == file:
            (self.output / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, self.output / name)
        else:
            text = file.read_text(encoding="utf-8")
            self.write(name + ".md", f"# {name}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n")

    def run(self):
        shutil.rmtree(self.output, ignore_errors=True)
        self.waiting += sorted((ROOT / "docs").rglob("*.md"))
        while self.waiting:
            file = self.waiting.pop()
            if file not in self.done:
                self.done.add(file)
                self.add(file)
        shutil.copy(ROOT / "docs" / "site" / "site.css", self.output)
        for name, text in api.pages(HEADERS, EXTRAS).items():
            self.write(f"docs/api/{name}", text)


if __name__ == "__main__":
    Stage(pathlib.Path(sys.argv[1]).resolve()).run()
