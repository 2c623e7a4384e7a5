"""What the programs that run PyTorch's own tests share. Import it before PyTorch's tests."""

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
