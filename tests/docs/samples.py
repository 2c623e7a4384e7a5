#!/usr/bin/env python3
"""Makes one source file of all C++ samples in README.md and docs/, so that the compiler checks them.

    samples.py ROOT OUTPUT

A sample is a block that begins with ```cpp. One with an int main is a program of its own; `<!-- program: NAME -->` before
it names it, and the compiled file runs it as `doc_samples NAME ARGUMENTS`. Any other sample becomes the body of a function
that nothing calls, with the variables of tests/docs/context.h in scope. Compiler messages name the page and the line.
"""

import pathlib
import re
import sys

SAMPLE = re.compile(r"(?:<!-- program: (\w+) -->\n+)?^```cpp\n(.*?)^```$", re.M | re.S)


def pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def samples(root):
    """Page, line, name of the program or None, and text of each sample."""
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        for match in SAMPLE.finditer(text):
            yield page, text.count("\n", 0, match.start(2)) + 1, match[1], match[2]


def source(root):
    includes, bodies, programs = [], [], []
    for number, (page, line, name, text) in enumerate(samples(root)):
        includes += re.findall(r"^#include .*$", text, re.M)
        code = re.sub(r"^#include .*$", "", text, flags=re.M)
        at = f'#line {line} "{page.relative_to(root)}"\n'
        if "int main(" in code:
            name = name or f"sample_{number}"
            programs.append(name)
            bodies.append(f"namespace program_{name} {{\n{at}{code}}}\n")
        else:
            bodies.append(f"[[maybe_unused]] static void sample_{number}() {{\n{at}{code}}}\n")
    if not bodies:
        sys.exit(f"{root}: found no sample")
    calls = "".join(f'  if (name == "{name}") return program_{name}::main(argc - 1, argv + 1);\n' for name in programs)
    return "\n".join(['#include "tests/docs/context.h"', *dict.fromkeys(includes), *bodies,
                      '#line 1 "samples.py"', "int main(int argc, char** argv) {",
                      '  const std::string_view name = argc > 1 ? argv[1] : "";', calls,
                      f'  std::cerr << "expected one of: {", ".join(programs)}\\n";', "  return 2;", "}", ""])


def main():
    root, output = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    output.write_text(source(root), encoding="utf-8")


if __name__ == "__main__":
    main()
