"""Collectives of Lockstep and of every peer, in turns."""

import os
import statistics

from peers import Failed, collectives_of, say, table

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


def table_of(rows):
    """Works by library, each by its fastest way: medians of the turns in one state of the machine."""
    taken = {}
    for row in rows:
        work = (row["state"], row["work"], row["ranks"], row["bytes"])
        taken.setdefault(work, {}).setdefault(row["way"], []).append(row["us"])
    others = dict.fromkeys(library_of(row["way"]) for row in rows if row["way"] not in (GROUP, OWN))
    columns = ["group memory", "ordinary memory", *others, "fastest peer over group memory", "over ordinary memory"]
    lines = [["work", *columns]]
    for state in ("near", "far"):
        for collective, ranks, size in WORK:
            medians = {way: statistics.median(us) for way, us in taken.get((state, collective, ranks, size), {}).items()}
            own = [medians.get(way) for way in (GROUP, OWN)]
            if not any(own):
                continue
            peers = {library: min((us for way, us in medians.items() if library_of(way) == library), default=None)
                     for library in others}
            fastest = min(filter(None, peers.values()), default=None)
            cells = [shown(us) if us else "–" for us in (*own, *peers.values())]
            cells += [f"{fastest / us:.2f}×" if us and fastest else "–" for us in own]
            title = " ".join(filter(None, (f"{state}: {collective}", NAMES[size], f"{ranks} ranks")))
            lines.append([title, *cells])
    return table(*lines)


def library_of(way):
    """OpenMPI of "OpenMPI, UCX"."""
    return way.split(",")[0]


def bandwidth(rows):
    """The large all_reduce in group memory reads and writes every rank's buffer once."""
    percent = [100 * 2 * row["ranks"] * row["bytes"] / row["us"] * 1e-3 / row["stream_gbs"]
               for row in rows if row["stream_gbs"] and row["way"] == GROUP]
    if not percent:
        return ""
    return (f"100 MB in group memory moved at {statistics.median(percent):.0f} % of what `a += b` in both"
            f" processes gave in the same turn ({min(percent):.0f} to {max(percent):.0f}).\n")


def report(rows):
    return "\n".join(filter(None, [
        "Medians of the turns in one state. Near: both cores share a cache before and after the figure (a line's round\n"
        "trip below 200 ns). Far: they do not. A library counts by its fastest way.\n",
        table_of(rows), bandwidth(rows)]))
