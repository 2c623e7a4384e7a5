#!/usr/bin/env python3
"""Compares the speed of two builds of Lockstep: collectives of one host and of MPI, and training steps.

    bench/compare_builds.py --before OTHER/build --after build
    bench/compare_builds.py --before OTHER/build --after build --simulated-hosts    as root
    bench/compare_builds.py --flight-recorder --after build

With --simulated-hosts it takes an all_reduce and steps of strategies with several stages instead: a rank
with one thread on each of the two hosts that tools/two-hosts simulates, in steps with a progress thread.

With --flight-recorder it compares one build without and with the flight recorder, in the operations that a
record delays most and in training steps.

The builds take turns within one run, and which of them is first alternates. The table has the
median of each build's times, the ratio of these medians, and the ratio of the least times, which a
busy machine disturbs less. Strategy names and options are those that every version understands.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "bench" / "peers"))

from peers import run  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"4 bytes": 4, "1 KiB": KIB, "64 KiB": 64 * KIB, "1 MiB": MIB, "25 MiB": 25 * MIB}
STEPS = {
    "CNN": ["--model", "cnn", "--steps", 20],
    "CNN, FusedSgd": ["--model", "cnn", "--steps", 20, "--fused"],
    "MLP": ["--model", "mlp", "--steps", 5],
    "MLP, FusedSgd": ["--model", "mlp", "--steps", 5, "--fused"],
    "MLP, share_memory": ["--model", "mlp", "--steps", 5, "--share-memory"],
    "ResNet9": ["--model", "resnet9", "--steps", 3],
    "MLP, PowerSGD of rank 4": ["--model", "mlp", "--steps", 3, "--strategy", "powersgd:rank=4"],
    "MLP, int8": ["--model", "mlp", "--steps", 3, "--strategy", "int8"],
    "CNN, PowerSGD of rank 4": ["--model", "cnn", "--steps", 20, "--strategy", "powersgd:rank=4"],
    "CNN, int8": ["--model", "cnn", "--steps", 20, "--strategy", "int8"],
}
# Link, and flags of the step.
STEPS_OVER_A_LINK = {
    "MLP, PowerSGD of rank 4, 1 Gbit/s": ("1gbit", ["--model", "mlp", "--steps", 3, "--strategy", "powersgd:rank=4"]),
    "MLP, PowerSGD of rank 32, 100 Mbit/s":
        ("100mbit", ["--model", "mlp", "--steps", 3, "--strategy", "powersgd:rank=32"]),
    "CNN, PowerSGD of rank 4, 100 Mbit/s": ("100mbit", ["--model", "cnn", "--steps", 20, "--strategy", "powersgd:rank=4"]),
    "MLP, int8, 1 Gbit/s": ("1gbit", ["--model", "mlp", "--steps", 3, "--strategy", "int8"]),
    "CNN, int8, 100 Mbit/s": ("100mbit", ["--model", "cnn", "--steps", 20, "--strategy", "int8"]),
}
TWO_HOSTS = ROOT / "tools" / "two-hosts"
MPIRUN = ["mpirun", "--allow-run-as-root", "-n", 2, "-x", "OMP_NUM_THREADS=1"]


@dataclasses.dataclass
class Build:
    """A folder of programs, and environment variables for them."""
    binaries: pathlib.Path
    variables: dict = dataclasses.field(default_factory=dict)


def collective(kind, size, memory, launch=()):
    """A measurement in µs of a build. launch: of ranks over MPI; without it, two ranks of one host."""
    flags = [kind, *(["--backend", "mpi"] if launch else ["-n", 2]), "--memory", memory, "--min", size, "--max", size]

    def measure(build):
        return run([*launch, build.binaries / "lockstep", "bench", *flags, "--json"], build.variables)[0]["time_us"]
    return measure


def step(flags, rate=None):
    """A measurement in ms of a build. rate: of the link between two hosts; without it, on one host."""
    def measure(build):
        launch = [build.binaries / "lockstep", "run", "-n", 2]
        if rate:
            launch = [TWO_HOSTS, "--rate", rate, "--per-host", 1, "env", "OMP_NUM_THREADS=1", "LOCKSTEP_PROGRESS=thread"]
        return run([*launch, build.binaries / "bench_train_step", *flags, "--rounds", 2 if rate else 3,
                    "--no-alone", "--no-faults"], build.variables)[-1]["together_ms"]
    return measure


def figures_over_a_link():
    """(name, unit, measurement) of each figure between simulated hosts."""
    launch = [TWO_HOSTS, "--per-host", 1, "env", "OMP_NUM_THREADS=1"]
    for name in ("64 KiB", "1 MiB", "25 MiB"):
        yield f"all_reduce of {name}, 1 Gbit/s", "µs", collective("all_reduce", SIZES[name], "group", launch)
    for name, (rate, flags) in STEPS_OVER_A_LINK.items():
        yield f"step of {name}", "ms", step(flags, rate)


def figures():
    """(name, unit, measurement) of each figure."""
    for memory in ("group", "private"):
        for name, size in SIZES.items():
            yield f"all_reduce of {name}, {memory} memory", "µs", collective("all_reduce", size, memory)
    for kind in ("broadcast", "all_gather", "reduce_scatter"):
        for name in ("1 KiB", "25 MiB"):
            yield f"{kind} of {name}, group memory", "µs", collective(kind, SIZES[name], "group")
    yield "barrier", "µs", collective("barrier", KIB, "group")
    for name, size in SIZES.items():
        yield f"all_reduce of {name} over MPI", "µs", collective("all_reduce", size, "private", MPIRUN)
    for name, flags in STEPS.items():
        yield f"step of {name}", "ms", step(flags)


def figures_of_the_recorder():
    """(name, unit, measurement) of each figure that the flight recorder changes most."""
    for name in ("4 bytes", "1 KiB"):
        yield f"all_reduce of {name}, group memory", "µs", collective("all_reduce", SIZES[name], "group")
    for name in ("CNN", "MLP"):
        yield f"step of {name}", "ms", step(STEPS[name])


def compare(builds, chosen, options):
    """Prints the table."""
    first, second = builds
    print(f"| figure | {first} | {second} | {second}/{first}, medians | {second}/{first}, least of {options.rounds} |")
    print("|---|---|---|---|---|")
    for name, unit, measure in chosen:
        if options.only not in name:
            continue
        times = {build: [] for build in builds}
        for turn in range(options.rounds):
            for build in list(builds)[:: 1 if turn % 2 == 0 else -1]:
                times[build].append(measure(builds[build]))
        medians = [statistics.median(times[build]) for build in builds]
        least = min(times[second]) / min(times[first])
        print(f"| {name} | {medians[0]:.4g} {unit} | {medians[1]:.4g} {unit} | {medians[1] / medians[0]:.3f} "
              f"| {least:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=pathlib.Path, help="build folder")
    parser.add_argument("--after", required=True, type=pathlib.Path, help="build folder")
    parser.add_argument("--rounds", default=7, type=int, help="turns of both builds for each figure [7]")
    parser.add_argument("--only", default="", help="figures whose name contains this text")
    parser.add_argument("--simulated-hosts", action="store_true", help="over a limited link; needs root")
    parser.add_argument("--flight-recorder", action="store_true", help="one build without and with the recorder")
    options = parser.parse_args()

    after = Build(options.after / "bin")
    if options.flight_recorder:
        builds = {"without": dataclasses.replace(after, variables={"LOCKSTEP_FLIGHT_RECORDER": "0"}), "with": after}
        chosen = figures_of_the_recorder()
    elif options.before is None:
        parser.error("--before is required without --flight-recorder")
    else:
        builds = {"before": Build(options.before / "bin"), "after": after}
        chosen = figures_over_a_link() if options.simulated_hosts else figures()
    compare(builds, chosen, options)


if __name__ == "__main__":
    main()
