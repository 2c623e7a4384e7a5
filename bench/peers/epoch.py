"""One epoch of MNIST with SINGA's CNN on two ranks: Lockstep's mnist_cnn, and PyTorch's
DistributedDataParallel with the digits in memory."""

import statistics
import tempfile

from peers import HERE, by_way, run, spread, table


def measure(options, machine, turn):
    with tempfile.TemporaryDirectory() as folder:
        metrics = f"{folder}/metrics.jsonl"
        ways = {
            "Lockstep": [options.build / "bin" / "lockstep", "run", "-n", 2,
                         options.build / "bin" / "mnist_cnn", "--data", options.data, "--epochs", 1,
                         "--checkpoint", "", "--no-efficiency", "--quiet", "--metrics", metrics],
            "PyTorch DDP": [options.python, HERE / "torch_epoch.py", options.data],
        }
        for way, command in ways.items():
            rows, around = machine.around(lambda: run(command))
            if way == "Lockstep":
                rows = run(["cat", metrics])
            yield {"turn": turn, "way": way, "s": rows[-1]["seconds"],
                   "test_accuracy": rows[-1]["test_accuracy"], **around}


def report(rows):
    times = by_way(rows, "s")
    accuracies = {row["way"]: row["test_accuracy"] for row in rows}
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    return table(["MNIST, one epoch, 2 ranks, batch 64 a rank", "s", "over Lockstep", "test accuracy"],
                 *([way, spread(taken, 2), f"{medians[way] / medians['Lockstep']:.2f}", f"{accuracies[way]:.4f}"]
                   for way, taken in times.items()))
