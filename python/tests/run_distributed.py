"""Runs PyTorch's own DistributedTest over Lockstep.

    PYTHONPATH=build/python python3 python/tests/run_distributed.py --ranks 2 [--gloo] [--two-hosts] [-k NAME]

With --gloo the same tests run over gloo, for comparison; with --two-hosts, half of the ranks run on each of two hosts that
this machine simulates, as root (tools/two-hosts). Prints how many tests passed, failed and were skipped, and
exits 1 if a test failed that is not in EXPECTED_FAILURES. Tests of CUDA, NCCL and other backends are skipped.
"""

import argparse
import atexit
import json
import os
import pathlib
import sys
import tempfile
import unittest

# Tests of DistributedTest that fail over Lockstep, each with its reason.
EXPECTED_FAILURES = {
    "test_ddp_logging_data_cpu": "PyTorch's log of DDP names every backend of another package 'custom'",
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--ranks", type=int, default=2, help="number of ranks (default: 2)")
parser.add_argument("--gloo", action="store_true", help="run the tests over gloo")
parser.add_argument("--two-hosts", action="store_true", help="run the ranks on two simulated hosts")
parser.add_argument("-k", default="", metavar="TEXT", help="run only tests whose name contains TEXT")
parser.add_argument("--json", metavar="FILE", help="write the names of all tests by outcome to FILE")
parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="longest time of one test (default: 60)")
args = parser.parse_args()

backend = "gloo" if args.gloo else "lockstep"
folder = tempfile.TemporaryDirectory()
os.environ.update(BACKEND=backend, WORLD_SIZE=str(args.ranks), TEMP_DIR=folder.name, OMP_NUM_THREADS="1")

import pytorch_tests  # noqa: E402
import torch  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

import lockstep_torch  # noqa: E402, F401: registers the backend

torch.set_num_threads(1)
common_distributed.TIMEOUT_DEFAULT = args.limit
# The tests of all other backends run for those in these sets.
for name in ("ddp", "subgroup", "plugin"):
    common_distributed.DistTestCases.backend_feature[name].add("lockstep")

from torch.testing._internal.distributed import distributed_test  # noqa: E402: it reads these sets


class LockstepTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    two_hosts = None

    def setUp(self):
        super().setUp()
        self._start_processes(pytorch_tests.start_by(self.two_hosts))


def main():
    if args.two_hosts:
        LockstepTest.two_hosts = pytorch_tests.hosts.TwoHosts(pathlib.Path(folder.name))
        atexit.register(LockstepTest.two_hosts.close)
    outcome = {"backend": backend, "ranks": args.ranks, "torch": torch.__version__,
               **pytorch_tests.run(test for test in unittest.defaultTestLoader.loadTestsFromTestCase(LockstepTest)
                                   if args.k in test.id())}
    failed = outcome["failed"]
    if args.json:
        with open(args.json, "w") as file:
            json.dump(outcome, file, indent=1)
    unexpected = [test for test in failed if test not in EXPECTED_FAILURES]
    print(f"{backend}, {args.ranks} ranks: {len(outcome['passed'])} passed, {len(failed)} failed "
          f"({len(failed) - len(unexpected)} of them expected), {len(outcome['skipped'])} skipped")
    for test in failed:
        print(f"  {test}: {EXPECTED_FAILURES.get(test, 'not expected')}")
    return 1 if unexpected and not args.gloo else 0


if __name__ == "__main__":
    sys.exit(main())
