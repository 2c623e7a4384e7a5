"""Hooks of MkDocs.

They complete the menu from the pages that are there, give headings the anchors of code hosts, and let long names break.
"""

import pathlib
import re

from mkdocs.structure.files import InclusionLevel


def slug(heading, separator):
    """As tools/check-links has it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = slug
    pages = pathlib.Path(config.docs_dir)

    def all_of(folder):
        found = sorted(path.relative_to(pages).as_posix() for path in (pages / folder).glob("*.md"))
        return sorted(found, key=lambda path: not path.endswith("README.md"))

    def section(items, name):
        return next(item[name] for item in items if name in item)

    guides = section(config.nav, "Guides")
    known = {path for guide in guides for path in guide.values()}
    guides += [path for path in all_of("docs/guides") if path not in known]
    section(section(config.nav, "Reference"), "API")[:] = all_of("docs/api")
    section(section(config.nav, "Design"), "Notes")[:] = all_of("docs/design")
    return config


def on_files(files, config):
    """Links reach the pages of source files; those are not in the menu. A page of docs/ that is not, is a warning."""
    for file in files.documentation_pages():
        if not file.src_uri.startswith("docs/") and file.src_uri not in menu(config.nav):
            file.inclusion = InclusionLevel.NOT_IN_NAV
    return files


def menu(items):
    """All paths of a menu."""
    for item in items:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            for value in item.values():
                yield from menu(value if isinstance(value, list) else [value])


def on_page_content(html, **_):
    """A word of 30 characters and more, of the code in a table, may go on in the next line."""

    def breakable(word):
        return re.sub(r"(?<=[_(=./])(?=\w)|(?<=::)", "<wbr>", word[0])

    def cell(match):
        return re.sub(r"(?<=<code>)[^<]+", lambda code: re.sub(r"\S{30,}", breakable, code[0]), match[0])

    return re.sub(r"<td.*?</td>", cell, html, flags=re.DOTALL)
