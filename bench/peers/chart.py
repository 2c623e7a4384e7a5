#!/usr/bin/env python3
"""Draws the figures of bench/peers/baseline.jsonl as docs/images/peers.svg, the chart of the README.

    bench/peers/chart.py [--check]

docs/images/peers-narrow.svg is the same for narrow screens. --check writes nothing; it exits 1 if a chart is
not that of the figures. The colours follow the reader's light or dark mode. Medians over the turns, as in docs/results.md.
"""

import argparse
import collections
import html
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURES = ROOT / "bench" / "peers" / "baseline.jsonl"
IMAGES = ROOT / "docs" / "images"

# Left: steps. A rival stands below the way of Lockstep with the same optimizer and memory.
MODELS = {"cnn": "CNN", "mlp": "MLP", "resnet9": "ResNet9", "resnet50": "ResNet-50"}
STEP_WAYS = {"Lockstep, torch's SGD": ("Lockstep, SGD", "plain"),
             "PyTorch DDP as shipped": ("PyTorch DDP as shipped, SGD", "shipped"),
             "Lockstep, FusedSgd": ("Lockstep, fused SGD", "ours"),
             "PyTorch DDP at its best": ("PyTorch DDP tuned, fused SGD", "torch"),
             "and fused SGD": ("one process, 2 threads, fused SGD", "one")}
BESIDE = {"PyTorch DDP as shipped": "Lockstep, torch's SGD", "PyTorch DDP at its best": "Lockstep, FusedSgd",
          "and fused SGD": "Lockstep, FusedSgd"}
# Right: all_reduce of two ranks, both cores near. A library counts by its fastest way at each size.
SIZES = {65536: "64 KiB", 1 << 20: "1 MiB", 25 << 20: "25 MiB", 100_000_000: "100 MB"}
LIBRARIES = {"Lockstep": ("Lockstep, group memory", "ours"), "oneCCL": ("oneCCL", "ccl"),
             "Intel MPI": ("Intel MPI", "intel"), "OpenMPI": ("OpenMPI", "openmpi"),
             "PyTorch Gloo": ("PyTorch Gloo", "torch")}

STYLE = """
  .card { fill: #ffffff } .text { fill: #1f2328 } .soft { fill: #59636e } .line { stroke: #d1d9e0 }
  .ours { fill: #0969da } .plain { fill: #80b3ee } .torch { fill: #bc4c00 } .shipped { fill: #e39b6b } .one { fill: #8c959f }
  .ccl { fill: #1a7f37 } .intel { fill: #8250df } .openmpi { fill: #9a6700 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #151b23 } .text { fill: #f0f6fc } .soft { fill: #a3adb8 } .line { stroke: #3d444d }
    .ours { fill: #58a6ff } .plain { fill: #2f5f9e } .torch { fill: #f0883e } .shipped { fill: #9e6a42 } .one { fill: #6e7681 }
    .ccl { fill: #56d364 } .intel { fill: #bc8cff } .openmpi { fill: #e3b341 }
  }
  text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif } .title { font-weight: 600; font-size: 14px }
  .value { font-size: 11px; stroke: #ffffff; stroke-width: 3px; paint-order: stroke }
  @media (prefers-color-scheme: dark) { .value { stroke: #151b23 } }
"""


def read(file):
    """Medians: of a step in ms by (model, way), of an all_reduce in us by (bytes, way)."""
    steps, reductions = collections.defaultdict(list), collections.defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["part"] == "steps":
            steps[row["model"], row["way"]].append(row["ms"])
        elif row["part"] == "collectives" and (row["work"], row["ranks"], row["state"]) == ("all_reduce", 2, "near"):
            reductions[row["bytes"], row["way"]].append(row["us"])
    return [{key: statistics.median(taken) for key, taken in rows.items()} for rows in (steps, reductions)]


def text(x, y, content, kind="text", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(content)}</text>'


def time(us):
    value, unit = (us / 1000, "ms") if us >= 1000 else (us, "µs")
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def legend(x, y, entries, width):
    lines, at = [], x
    for name, kind in entries:
        wide = 24 + 7.2 * len(name)
        if at > x and at + wide > x + width:
            at, y = x, y + 17
        lines += [f'<rect x="{at:.1f}" y="{y - 9}" width="10" height="10" rx="2" class="{kind}"/>',
                  text(at + 14, y, name, "soft")]
        at += wide
    return lines


def draw_steps(steps, x, y, width):
    """Bars of each way's time over that of Lockstep's fused optimizer."""
    lines = [text(x, y, "Training step, 2 ranks or 1 process", "text title")]
    lines += legend(x, y + 22, STEP_WAYS.values(), width)
    base, y = x + 66, y + 73
    ratios = {(model, way): steps[model, way] / steps[model, "Lockstep, FusedSgd"] for model in MODELS for way in STEP_WAYS}
    scale = (width - 66 - 92) / max(ratios.values())
    for model, name in MODELS.items():
        lines.append(text(base - 8, y + 36, name, "text", "end"))
        for way, (_, kind) in STEP_WAYS.items():
            ms, length = steps[model, way], scale * ratios[model, way]
            beside = f" ({ms / steps[model, BESIDE[way]]:.2f}×)" if way in BESIDE else ""
            lines += [f'<rect x="{base}" y="{y}" width="{length:.1f}" height="11" class="{kind}"/>',
                      text(base + length + 4, y + 9.5, time(1000 * ms) + beside, "soft value")]
            y += 13
        y += 12
    return lines


def draw_reductions(reductions, x, y, width):
    """A row for each size, a dot for each library on a logarithmic axis of time."""
    lines = [text(x, y, "all_reduce of float32, 2 ranks", "text title")]
    lines += legend(x, y + 22, LIBRARIES.values(), width)
    fastest = {}
    for (size, way), us in reductions.items():
        for library, (first, _) in LIBRARIES.items():
            if size in SIZES and (way == first or (library != "Lockstep" and way.startswith(library))):
                fastest[size, library] = min(us, fastest.get((size, library), math.inf))
    base, end, y = x + 56, x + width - 16, y + 56
    low, high = 1.0, 100_000.0
    place = lambda us: base + (end - base) * math.log(us / low) / math.log(high / low)
    bottom = y + 64 * len(SIZES) - 12
    for power in range(6):
        at = place(low * 10**power)
        lines += [f'<line x1="{at:.1f}" y1="{y - 4}" x2="{at:.1f}" y2="{bottom}" class="line"/>',
                  text(at, bottom + 15, time(10**power), "soft value", "middle")]
    for size, name in SIZES.items():
        lines.append(text(base - 8, y + 28, name, "text", "end"))
        for library, (_, kind) in LIBRARIES.items():
            us = fastest[size, library]
            ours = library == "Lockstep"
            lines.append(f'<circle cx="{place(us):.1f}" cy="{y + 24}" r="{7 if ours else 5.5}" class="{kind}"/>')
            if ours:
                lines.append(text(place(us), y + 11, time(us), "soft value", "middle"))
        y += 64
    return lines


def chart(width, height, *parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="Measured speed of Lockstep and of other libraries">',
        f"<style>{STYLE}</style>", f'<rect width="{width}" height="{height}" rx="8" class="card"/>',
        *(line for part in parts for line in part), "</svg>", ""])


def charts():
    """The text of each image. On a narrow screen one part stands below the other."""
    steps, reductions = read(FIGURES)
    how = ("×: over Lockstep with the same optimizer.", "Shorter and further left is faster.", "2 cores of an AMD EPYC, medians.")
    wide = chart(880, 444, draw_steps(steps, 20, 30, 420), draw_reductions(reductions, 480, 30, 380),
                 [text(20, 428, " ".join(how), "soft value")])
    narrow = chart(420, 820, draw_steps(steps, 10, 30, 400), draw_reductions(reductions, 10, 450, 400),
                   [text(10, 420, how[0], "soft value"), text(10, 792, how[1], "soft value"),
                    text(10, 809, how[2], "soft value")])
    return {"peers.svg": wide, "peers-narrow.svg": narrow}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare the images with the figures")
    check = parser.parse_args().check
    for name, drawn in charts().items():
        image = IMAGES / name
        if not check:
            image.write_text(drawn, encoding="utf-8")
        elif not image.exists() or image.read_text(encoding="utf-8") != drawn:
            sys.exit(f"{image.relative_to(ROOT)}: is not the chart of bench/peers/baseline.jsonl: run bench/peers/chart.py")


if __name__ == "__main__":
    main()
