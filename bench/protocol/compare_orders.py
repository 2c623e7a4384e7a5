#!/usr/bin/env python3
"""Shows what other memory orders of the shared-memory protocol are worth: it compares machine code.

    bench/protocol/compare_orders.py                             weaker orders of every access, x86-64
    bench/protocol/compare_orders.py --stronger                  stronger orders, too
    bench/protocol/compare_orders.py --access 'asleep_*' --stronger
    bench/protocol/compare_orders.py --compiler aarch64-linux-gnu-g++-12

src/comm/atomics.h has the order of each access. The program gives one access another order in a copy
of that header, compiles with it the sources of src/comm that contain the access, with the flags of a
release, and compares their assembly with that of the shipped order. "same": the order is worth
nothing on this processor, also if all accesses of its kind have it. Otherwise the table has the instructions that disappear (-) and those that
appear (+) in all these sources. Exit status: 0, or 2 if the compiler is missing or fails.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ATOMICS = ROOT / "src" / "comm" / "atomics.h"
FOLDERS = ("comm", "comm/host")
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-w", f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
# From weak to strong. A fence that is relaxed is no fence.
ORDERS = {
    "load": ["relaxed", "acquire", "seq_cst"],
    "store": ["relaxed", "release", "seq_cst"],
    "read_modify_write": ["relaxed", "acquire", "release", "acq_rel", "seq_cst"],
    "fence": ["relaxed", "acquire", "release", "acq_rel", "seq_cst"],
}
RULE = re.compile(r'\{(\w+), "\1", (\w+), (\w+)\}')


def rules():
    """{name: (kind, order)} of every access."""
    return {name: (kind, order) for name, kind, order in RULE.findall(ATOMICS.read_text())}


def other_orders(kind, order, stronger):
    """Legal orders of the access but its own. acquire and release do not replace one another."""
    known = ORDERS[kind]
    at = known.index(order)
    for other in known:
        if {other, order} == {"acquire", "release"} or other == order:
            continue
        if known.index(other) < at or stronger:
            yield other


def compile_source(compiler, flags, source):
    done = subprocess.run([compiler, *flags, *FLAGS, "-S", "-o", "-", str(source)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.stderr.write(f"compare_orders: {compiler} cannot compile {source}:\n{done.stderr[:2000]}\n")
        os._exit(2)
    return [line.strip() for line in done.stdout.splitlines() if re.match(r"\t[a-z]", line)]


def sources_of(compiler, names):
    """{access: the sources that contain it, directly or by a header}."""
    including = collections.defaultdict(set)
    for folder in FOLDERS:
        for source in sorted((ROOT / "src" / folder).glob("*.cpp")):
            listed = subprocess.run([compiler, *FLAGS, "-MM", str(source)], capture_output=True, text=True, check=True)
            for file in listed.stdout.replace("\\\n", " ").split()[1:]:
                including[pathlib.Path(file).resolve()].add(source)
    found = {name: set() for name in names}
    for file, sources in including.items():
        if file == ATOMICS or not file.is_relative_to(ROOT / "src"):
            continue
        for name in re.findall(r"\bAccess::(\w+)", file.read_text()):
            if name in found:
                found[name] |= sources
    return found


def instruction(line):
    """Mnemonic; of a call of the runtime's atomics, the function."""
    words = line.split()
    return words[1] if len(words) > 1 and words[1].startswith("__aarch64_") else words[0]


def difference(shipped, other):
    """What changes in the instructions of the sources."""
    before, after = (collections.Counter(map(instruction, sum(code, []))) for code in (shipped, other))
    changes = [f"{'-' if after[one] < before[one] else '+'}{abs(after[one] - before[one])} {one}"
               for one in sorted(before | after) if before[one] != after[one]]
    if changes:
        return ", ".join(changes)
    return "same" if shipped == other else "the same instructions in another order"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--access", default=["*"], nargs="+", metavar="PATTERN",
                        help="accesses whose name matches one of these (default: all)")
    parser.add_argument("--stronger", action="store_true", help="also the orders that are stronger than the shipped one")
    parser.add_argument("--compiler", default="g++", help="compiler (default: g++)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time (default: number of cores)")
    options = parser.parse_args()
    if shutil.which(options.compiler) is None:
        sys.stderr.write(f"compare_orders: {options.compiler} is not installed: nothing is compared\n")
        return 2
    known = rules()
    chosen = [name for name in known if any(fnmatch.fnmatch(name, one) for one in options.access)]
    if not chosen:
        parser.error(f"no access of src/comm/atomics.h matches {' '.join(options.access)}")
    sources = sources_of(options.compiler, chosen)
    text = ATOMICS.read_text()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:

        def compile_all(flags, names):
            return list(pool.map(lambda source: compile_source(options.compiler, flags, source), names))

        every = sorted(set().union(*sources.values()))
        shipped = dict(zip(every, compile_all([], every)))

        def with_orders(number, orders, names):
            """{source: its code} with these orders, {access: order}."""
            header = pathlib.Path(folder) / str(number) / "comm" / "atomics.h"
            header.parent.mkdir(parents=True)
            changed = text
            for name, order in orders.items():
                kind, own = known[name]
                changed = changed.replace(f'{{{name}, "{name}", {kind}, {own}}}', f'{{{name}, "{name}", {kind}, std::memory_order_{order}}}')
            header.write_text(changed)
            names = sorted(names)
            return dict(zip(names, compile_all([f"-I{header.parent.parent}"], names)))

        # All accesses of a kind get the order at once. Only sources that change are compiled for each access. A source
        # that does not change with relaxed does not change with an order between relaxed and the shipped one.
        variants = [(name, other) for name in chosen for other in other_orders(*known[name], options.stronger)]
        changed = {}
        groups = {(known[name][0], other) for name, other in variants}
        for kind, other in sorted(groups, key=lambda group: (group[0], ORDERS[group[0]].index(group[1]))):
            of_group = {name: other for name, order in variants if order == other and known[name][0] == kind}
            names = set().union(*(sources[name] for name in of_group))
            if (kind, "relaxed") in changed and not options.stronger:
                names &= changed[kind, "relaxed"]
            code = with_orders(f"{kind}-{other}", of_group, names)
            changed[kind, other] = {source for source in names if code[source] != shipped[source]}
        print("| access | kind, order | other order | machine code |\n|---|---|---|---|")
        for name, other in variants:
            kind, order = known[name]
            own = sorted(sources[name] & changed[kind, other])
            code = with_orders(f"{name}-{other}", {name: other}, own)
            shown = "none" if kind == "fence" and other == "relaxed" else other
            print(f"| `{name}` | {kind.replace('_', '-')}, {order} | {shown} "
                  f"| {difference([shipped[one] for one in own], [code[one] for one in own])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
