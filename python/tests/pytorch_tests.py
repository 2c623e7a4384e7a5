"""What the programs that run PyTorch's own tests share. Import it before PyTorch's tests."""

import os
import pathlib
import sys
import types
import unittest

try:
    import expecttest  # noqa: F401
except ImportError:
    # PyTorch's test classes derive from its TestCase; these tests use nothing else of it.
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    stand_in.ACCEPT = False
    sys.modules["expecttest"] = stand_in


sys.path.append(str(pathlib.Path(__file__).parents[2] / "bench" / "faults"))
import hosts  # noqa: E402


def start_by(two_hosts=None):
    """What starts a rank of a test: a forked process, as importing PyTorch takes seconds. Of a pair of simulated hosts, rank r
    is on host r modulo 2."""
    import torch
    process = torch.multiprocessing.get_context("fork").Process
    if two_hosts is None:
        return process

    def run(target, rank, *rest, **named):
        os.environ["LOCKSTEP_HOST"] = two_hosts.name(1 + rank % 2)
        hosts.move_thread(os.environ["LOCKSTEP_HOST"])
        target(rank, *rest, **named)

    return lambda target, args, **named: process(target=run, args=(target, *args), **named)


class Result(unittest.TextTestResult):
    """Keeps the tests that passed, too."""

    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)


def run(tests):
    """Runs the tests, and returns the names of those that passed, failed and were skipped."""
    result = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(unittest.TestSuite(tests))
    name = lambda test: test.id().split(".")[-1]
    return {"passed": sorted(map(name, result.passed)),
            "failed": sorted(name(test) for test, _ in result.failures + result.errors),
            "skipped": sorted(name(test) for test, _ in result.skipped)}
