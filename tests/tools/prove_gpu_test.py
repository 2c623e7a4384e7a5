"""Tests tools/prove-gpu without a GPU: its report, its arguments, and the order of its checks with programs that
only print what those of Lockstep would."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "prove-gpu"


def load():
    loader = importlib.machinery.SourceFileLoader("prove_gpu", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("prove_gpu", loader))
    sys.modules["prove_gpu"] = module
    loader.exec_module(module)
    return module


TESTS = """#!/bin/sh
echo "$LOCKSTEP_TEST_DEVICE $0 $*" >>"$CALLS"
echo "[  PASSED  ] 3 tests."
echo "[  SKIPPED ] 2 tests, listed below:"
%s
"""
STEP = """#!/bin/sh
echo '{"together_ms": 10.0}'
"""
# As `lockstep run`: the first word that is a file is the program.
LAUNCHER = """#!/bin/sh
echo "launcher $*" >>"$CALLS"
while [ $# -gt 0 ] && [ ! -x "$1" ]; do shift; done
[ $# -eq 0 ] || exec "$@"
"""


class ProveGpu(unittest.TestCase):
    def setUp(self):
        self.tool = load()
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def programs(self, failing=""):
        """A build folder."""
        folder = self.folder / "build" / "bin"
        folder.mkdir(parents=True)
        for name, text in {"test_device": TESTS % failing, "test_parity": TESTS % "", "bench_train_step": STEP,
                           "lockstep": LAUNCHER}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        os.environ["CALLS"] = str(self.folder / "calls")
        self.addCleanup(os.environ.pop, "CALLS")
        return folder.parent

    def prove(self, gpus, why="", failing="", *arguments):
        """Exit status, report, and what was started, on a machine with so many GPUs."""
        self.tool.count_gpus = lambda: (gpus, why)
        self.tool.output_of = lambda command: ""
        report = self.folder / "report.md"
        with contextlib.redirect_stdout(io.StringIO()):
            status = self.tool.main(["--build", str(self.programs(failing)), "--programs", "--report", str(report),
                                     *arguments])
        calls = self.folder / "calls"
        return status, report.read_text(), calls.read_text() if calls.exists() else ""

    def test_without_a_gpu_the_report_has_every_part(self):
        status, report, calls = self.prove(0, "no driver")
        self.assertEqual(status, 2)
        self.assertIn("**No GPU**: no driver. Nothing is proven by this report.", report)
        for part in ("build", "collectives: one rank over NCCL", "two processes share GPU 0, staged", "a GPU each",
                     "killed processes", "DistributedDataParallel over NCCL", "compute-sanitizer, memcheck",
                     "step times: resnet50, batch 64", "step times: cnn", "step times: transformer"):
            self.assertRegex(report, rf"\| [^|]*{part}[^|]* \| no GPU \|  \| no GPU: no driver \|")
        self.assertEqual(calls, "")

    def test_one_gpu(self):
        status, report, calls = self.prove(1, "", "", "--parts", "devices", "parity", "steps")
        self.assertEqual(status, 0)
        self.assertIn("| collectives: one rank over NCCL | passed | 0 s |".replace(" 0 s", ""), report.replace(" 0 s", ""))
        self.assertIn("3 passed, 0 failed, 2 skipped", report)
        self.assertIn("needs 2 GPUs, this machine has 1", report)
        self.assertIn("cuda " + str(self.folder / "build/bin/test_device") + " --gtest_filter=Devices/Collectives.*/nccl1", calls)
        self.assertIn("launcher run -q -n 2 --gpus 0 --share-gpus", calls)
        self.assertIn("| resnet50 | 64 | 1 | Lockstep | 10.00 | 10.00 to 10.00 | 1.00 |", report)
        self.assertNotIn("test_parity", calls)

    def test_two_gpus(self):
        status, report, calls = self.prove(2, "", "", "--parts", "devices", "parity", "steps")
        self.assertEqual(status, 0)
        self.assertIn("launcher run -q -n 2 --gpus 0,1", calls)
        self.assertNotIn("-n 3", calls)
        self.assertIn("test_parity", calls)
        self.assertIn("| transformer | 32 | 2 | Lockstep |", report)

    def test_a_failure_has_its_command_and_output(self):
        status, report, _ = self.prove(2, "", 'echo "the disk is full"; echo "[  FAILED  ] 1 test, listed below:"; exit 1',
                                       "--parts", "devices")
        self.assertEqual(status, 1)
        self.assertIn("## Failed: collectives: one rank over NCCL", report)
        self.assertIn("3 passed, 1 failed, 2 skipped, exit status 1", report)
        self.assertIn("the disk is full", report)
        self.assertIn("--gtest_filter=Devices/Collectives.*/nccl1", report)

    def test_a_check_that_hangs_is_ended(self):
        _, report, _ = self.prove(1, "", "sleep 60", "--parts", "devices", "--timeout", "1")
        self.assertIn("did not end within 1 s", report)

    def test_the_report_is_complete_after_each_check(self):
        path = self.folder / "report.md"
        report = self.tool.Report(path)
        report.add(self.tool.Check("a | b", "passed", "one\ntwo", 61))
        text = path.read_text()
        self.assertIn("| a \\| b | passed | 61 s | one two |", text)
        self.assertIn("1 passed, 0 failed, 0 skipped. **The run has not ended.**", text)
        report.add(self.tool.Check("c", "failed", "", 0, "run it", "```\ninside"))
        report.is_complete = True
        report.write()
        text = path.read_text()
        self.assertIn("````\n$ run it\n```\ninside\n````", text)
        self.assertNotIn("has not ended", text)
        self.assertEqual(report.status(), 1)

    def test_early_failures_of_a_long_output_are_kept(self):
        output = "\n".join(["one", "a_test.cpp:7: Failure", "the cause", *(f"line {i}" for i in range(200))])
        text = self.tool.end_of(output)
        self.assertTrue(text.startswith("a_test.cpp:7: Failure\nthe cause\n"))
        self.assertTrue(text.endswith("…\n" + "\n".join(f"line {i}" for i in range(140, 200))))
        self.assertEqual(self.tool.end_of("short\n"), "short")

    def test_tables_of_steps_are_relative_to_lockstep(self):
        report = self.tool.Report(self.folder / "report.md")
        for way, times in (("Lockstep", [2.0, 4.0, 3.0]), ("PyTorch", [6.0, 6.0, 9.0])):
            report.times.append(self.tool.StepTime("cnn", 64, 2, way, times))
        self.assertIn("| cnn | 64 | 2 | PyTorch | 6.00 | 6.00 to 9.00 | 2.00 |", report.text())

    def test_arguments(self):
        for arguments, expected in ((["--torch", "/nowhere"], "--torch: got /nowhere, expected the folder of TorchConfig.cmake"),
                                    (["--programs", "--build", "/nowhere"], "which has no bin/test_device"),
                                    (["--timeout", "0"], "--timeout: got 0, expected more than 0"),
                                    (["--parts", "all"], "invalid choice: 'all'"),
                                    (["--report", "/nowhere/report.md"], "whose folder does not exist")):
            run = subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 2)
            self.assertIn(expected, run.stderr)


if __name__ == "__main__":
    unittest.main()
