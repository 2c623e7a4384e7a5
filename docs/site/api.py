"""Markdown pages of the public headers: each declaration with its `///` comment.

The headers are formatted by clang-format and hold few kinds of declarations, so statements and their braces are all that is
parsed. Private members, bodies of functions and the namespace detail are left out.
"""

import html
import re

LABELS = ("Shapes", "Units", "Ranks", "Throws", "Source")


class Item:
    def __init__(self, doc, code, members=()):
        self.doc, self.code, self.members = doc, code, list(members)
        self.name = self.name_of()

    def name_of(self):
        code = re.sub(r"<[^<>]*(<[^<>]*>[^<>]*)*>", "", self.code.split("///")[0])
        code = re.sub(r"\brequires\b\s*\(.*?\)\s*(?=\w)", "", code, flags=re.S)
        code = re.sub(r"\[\[\w+\]\]\s*", "", code)
        for pattern in (r"^#define (\w+)", r"^TORCH_MODULE\((\w+)\)", r"\b(?:class|struct|enum class|enum|concept|using|namespace)\s+(\w+)",
                        r"^[^={]*?(operator\(\)|operator bool|operator\W+|~?\w+)\s*\(", r"(\w+)(?:\[\])?\s*(?:=[^;]*|\{[^;]*\})?;"):
            found = re.search(pattern, code)
            if found:
                return found[1]
        return code.split()[0]


def scan(text):
    """Splits a scope into (doc lines, statement) pairs; a statement ends at ';' or '}' outside of all brackets."""
    doc, statement, depth, seen_body = [], [], 0, False
    for line in re.sub(r"\\\n *", "", text).split("\n"):
        bare = line.strip()
        if not statement:
            if bare.startswith("///"):
                doc.append(re.sub(r"^/// ?", "", bare))
                continue
            if not bare:
                doc = []
                continue
            if bare.startswith("//"):
                continue
            if bare.startswith("#"):
                if bare.startswith("#define"):
                    yield doc, bare
                doc = []
                continue
            if bare in ("public:", "private:", "protected:"):
                yield [], bare
                doc = []
                continue
        elif bare.startswith("#"):
            continue
        code = re.sub(r"//.*$|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)'", "", line)
        statement.append(line)
        depth += sum(code.count(sign) for sign in "({[") - sum(code.count(sign) for sign in ")}]")
        seen_body = seen_body or "{" in code
        end = code.strip()
        whole = "\n".join(statement)
        opens_type = re.match(r"\s*(template.*?>\s*)?(requires.*?)?(class|struct|enum|namespace|concept|extern)\b", whole, re.S)
        if depth == 0 and (end.endswith(";") or (end.endswith("}") and seen_body and not re.match(r"^\s*(class|struct|enum)", whole))
                           or (end.endswith("}") and opens_type and "namespace" in opens_type[0])):
            yield doc, whole
            doc, statement, seen_body = [], [], False


def body_of(statement):
    """What is between the first brace and its partner, and what is before it."""
    code = re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), statement)
    begin = code.index("{")
    return statement[:begin].rstrip(), statement[begin + 1:code.rindex("}")]


def dedent(code):
    lines = code.strip("\n").split("\n")
    least = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[least:] for line in lines).rstrip()


def without_body(code):
    """A function's declaration: no body, no list of initialisers."""
    plain = re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), code)
    depth = 0
    for place, sign in enumerate(plain):
        depth += (sign in "([") - (sign in ")]")
        ends = sign == "{" or (sign == ":" and plain[place:place + 2] != "::" and plain[place - 1] == " ")
        if depth == 0 and ends and ")" in plain[:place]:
            return code[:place].rstrip() + ";"
    return code


def items_of(text, is_public=True):
    for doc, statement in scan(text):
        if statement in ("public:", "private:", "protected:"):
            is_public = statement == "public:"
            continue
        first = statement.strip()
        if first.startswith("namespace"):
            head, body = body_of(statement)
            if not re.search(r"\bdetail\b", head) and "torch" not in head and "c10" not in head:
                yield from items_of(body)
            continue
        if not is_public or first.startswith(("friend", "static_assert", "template <>", "inline constexpr DType all")):
            continue
        kind = re.match(r"(?:template\s*<.*?>\s*)?(?:requires.*?\s)?(class|struct|enum)\b", first, re.S)
        if kind and "{" in first:
            head, body = body_of(statement)
            if kind[1] == "enum" or (kind[1] == "struct" and "(" not in re.sub(r"//[^\n]*|.*operator==.*", "", body)):
                yield Item(doc, dedent(statement))  # an aggregate is shown as it is
            elif "::" not in head.split(":", 1)[0] and not re.search(r"\w::\w+$", head):
                yield Item(doc, dedent(head) + ";", items_of(body, kind[1] == "struct"))
        elif kind and not doc:
            continue  # a forward declaration
        elif ("= delete" not in first and not re.search(r"\w::\w+\(.*\{", first)) or doc:
            yield Item(doc, dedent(without_body(statement)))


def prose(lines):
    """The comment as Markdown: samples stay, labels begin paragraphs."""
    out, in_sample = [], False
    for line in lines:
        if line.startswith("    "):
            if not in_sample:
                out += ["", "```cpp"]
            in_sample = True
            out.append(line[4:])
            continue
        if in_sample and line.strip():
            out += ["```", ""]
            in_sample = False
        if in_sample:
            continue
        line = html.escape(line, quote=False).replace("*", "\\*").replace("[", "\\[").replace("_", "\\_")
        line = re.sub(r"`[^`]*`", lambda code: html.unescape(code[0]).replace("\\", ""), line)
        line = re.sub(r"\bdocs/([\w/-]+(?:\\_[\w/-]+)*\.md)", r"[\1](../\1)", line)
        line = re.sub(r"(?<!`)(https?://[^\s)]+)", lambda url: f"<{url[0].rstrip('.,').replace(chr(92), '')}>", line)
        labelled = re.match(rf"({'|'.join(LABELS)}): ", line)
        if labelled:
            out.append("")
            line = f"**{labelled[1]}:** {line[labelled.end():]}"
        # A label in the middle of a paragraph begins one of its own.
        line = re.sub(rf"(?<=[.:] )({'|'.join(LABELS)}): ", r"\n\n**\1:** ", line)
        out.append(line)
    if in_sample:
        out.append("```")
    return "\n".join(out)


def render(item, level=2):
    lines = [f"{'#' * level} {item.name}", "", "```cpp", item.code, "```", "", prose(item.doc), ""]
    previous = None
    for member in item.members:
        shown = render(member, level + 1)
        lines += shown[2:] if member.name == previous else shown
        previous = member.name
    return lines


def merged(items, outer=""):
    """Overloads that share a comment under one heading, and so neighbours without comments."""
    out = []
    for item in items:
        item.members = merged(item.members, item.name)
        if item.name == outer:
            item.name += " (constructor)"
        last = out[-1] if out else None
        if last and "->" in item.code and not item.doc:
            continue  # a deduction guide
        if last and not item.members and not last.members and not item.doc and item.name == last.name.split(", ")[-1]:
            last.code += "\n" + item.code
        elif last and (outer or item.code.startswith("#")) and not item.doc and not (last.doc and outer) and not item.members and not last.members:
            last.code += "\n" + item.code
            last.name += ", " + item.name
        else:
            out.append(item)
    return out


def pages(folder, extras=None):
    """File names and texts of the pages of all headers. extras: the folder of those of Lockstep::extras."""
    found, index = {}, []
    headers = [*folder.glob("*.h"), *(extras.glob("*.h") if extras else [])]
    for header in sorted(headers, key=lambda path: path.name):
        items = merged(items_of(header.read_text(encoding="utf-8")))
        if not items:
            continue
        lines = [f"# {header.name}", "", "```cpp", f"#include <lockstep/{header.name}>", "```", ""]
        if header.parent == extras:
            lines += ["Link `Lockstep::extras`.", ""]
        for item in items:
            lines += render(item, 2)
        found[header.stem + ".md"] = "\n".join(lines) + "\n"
        names = ", ".join(dict.fromkeys(f"`{item.name}`" for item in items))
        index.append(f"| [{header.name}]({header.stem}.md) | {names} |")
    found["README.md"] = "\n".join(["# API", "", "The public headers. `lockstep/lockstep.h` includes what a training program needs.", "",
                                    "| header | declares |", "|---|---|", *index, ""])
    return found
