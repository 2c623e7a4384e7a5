"""Tables of Markdown, and where they stand in a page."""

import sys


def table(*rows):
    """The first row has the titles."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:], ""])


def put_into(page, name, text):
    """Replaces what lies between the marks of that name."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    whole = page.read_text(encoding="utf-8")
    if begin not in whole or end not in whole:
        sys.exit(f"{page}: no line '{begin}' to put the table after")
    head, rest = whole.split(begin, 1)
    page.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")
