"""Collectives of Lockstep and of every peer, in turns."""

import os
import statistics

from peers import Failed, collectives_of, say

KIB, MIB, MB = 1 << 10, 1 << 20, 1_000_000
# Collective, ranks, bytes.
WORK = [
    *(("all_reduce", 2, size) for size in (KIB, 64 * KIB, MIB, 25 * MIB, 100 * MB)),
    *((collective, 2, 25 * MIB) for collective in ("broadcast", "all_gather", "reduce_scatter")),
    ("all_reduce", 4, KIB),
    ("all_reduce", 4, 25 * MIB),
    ("barrier", 8, 0),
]
NAMES = {KIB: "1 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 25 * MIB: "25 MiB", 100 * MB: "100 MB", 0: ""}
GROUP, OWN = "Lockstep, group memory", "Lockstep, ordinary memory"


def suits(peer, collective, ranks, size):
    """Ranks that spin on a core which another one waits for take a second for what is to take a
    microsecond; PyTorch takes seconds to start, and is compared in two ranks' all_reduce."""
    crowded = ranks > (os.cpu_count() or 1)
    if peer.name == "PyTorch Gloo":
        return collective == "all_reduce" and not crowded
    return not (peer.spins and crowded and size < MIB)


def measure(options, machine, turn):
    """One turn of everything: a row for each figure, with the machine's state around it."""
    peers = [peer for peer in collectives_of(options.build, options.python, options.intel)
             if not peer.missing]
    for collective, ranks, size in WORK:
        for peer in peers:
            if not suits(peer, collective, ranks, size):
                continue
            try:
                found, around = machine.around(lambda: peer.measure(collective, ranks, size))
            except Failed as error:
                say(f"{peer.name}, {collective} of {ranks}: {error}")
                continue
            for row in found:
                name = peer.name
                if name == "Lockstep":
                    name = GROUP if row["memory"] == "group" else OWN
                yield {"turn": turn, "work": collective, "ranks": ranks, "bytes": size, "way": name,
                       "us": row["time_us"], "stream_gbs": row.get("stream_gbs"), **around}


def missing(options):
    """Why who is left out, a line each."""
    return [f"{peer.name}: {peer.missing}"
            for peer in collectives_of(options.build, options.python, options.intel) if peer.missing]


def shown(us):
    return f"{us:.2f} µs" if us < 100 else (f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.2f} ms")


def table(rows, works, state):
    """Ways by works, medians of the turns in that state, and how the fastest peer compares."""
    medians = {way: {} for way in (GROUP, OWN, *dict.fromkeys(row["way"] for row in rows))}
    for row in rows:
        if row["state"] == state:
            work = (row["work"], row["ranks"], row["bytes"])
            medians[row["way"]].setdefault(work, []).append(row["us"])
    if not any(work in found for found in medians.values() for work in works):
        return ""
    title = {work: " ".join(filter(None, (work[0], NAMES[work[2]], f"{work[1]} ranks")))
             for work in works}
    lines = [f"| {state} | " + " | ".join(title.values()) + " |", "|---" * (len(works) + 1) + "|"]

    def line(name, cell):
        cells = [cell(work) for work in works]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(text or "–" for text in cells) + " |")

    def median(way, work):
        taken = medians.get(way, {}).get(work)
        return statistics.median(taken) if taken else None

    for way in medians:
        line(way, lambda work: f"{shown(median(way, work))} ({len(medians[way][work])})"
             if median(way, work) else "")
    others = [way for way in medians if way not in (GROUP, OWN)]
    for own in (GROUP, OWN):
        def against(work, some):
            theirs = [median(way, work) for way in some if median(way, work)]
            return f"{min(theirs) / median(own, work):.2f}×" if theirs and median(own, work) else ""
        memory = own.removeprefix("Lockstep, ")
        line(f"**fastest peer over {memory}**", lambda work: against(work, others))
        line(f"OpenMPI over {memory}", lambda work: against(work, ["OpenMPI"]))
        line(f"Gloo over {memory}", lambda work: against(work, ["PyTorch Gloo"]))
    return "\n".join(lines) + "\n"


def bandwidth(rows):
    """The large all_reduce in group memory reads and writes every rank's buffer once."""
    percent = [100 * 2 * row["ranks"] * row["bytes"] / row["us"] * 1e-3 / row["stream_gbs"]
               for row in rows if row["stream_gbs"] and row["way"] == GROUP]
    if not percent:
        return ""
    return (f"100 MB in group memory moved at {statistics.median(percent):.0f} % of what `a += b` in both"
            f" processes gave in the same turn ({min(percent):.0f} to {max(percent):.0f}).\n")


def report(rows):
    texts = ["Medians, in brackets of how many figures; near: both cores share a cache before and after"
             " the figure (a line's round trip below 200 ns), far: they do not.\n"]
    for state in ("near", "far"):
        texts.append(table(rows, WORK[:5], state))
        texts.append(table(rows, WORK[5:], state))
    texts.append(bandwidth(rows))
    return "\n".join(filter(None, texts))
