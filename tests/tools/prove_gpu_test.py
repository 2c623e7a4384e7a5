"""Tests tools/prove-gpu without a GPU: its report, its arguments, and the order of its checks with programs that
only print what those of Lockstep would."""

import contextlib
import io
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import unittest.mock

from tool import ROOT, load

TESTS = """#!/bin/sh
echo "$LOCKSTEP_TEST_DEVICE $LD_PRELOAD $0 $*" >>"$CALLS"
echo "[  PASSED  ] 3 tests."
echo "[  SKIPPED ] 2 tests, listed below:"
%s
"""
# Rank 1 of the long form is `sleep`, which is killed.
STEP = """#!/bin/sh
case "$*" in *"--rounds 1000"*)
  sleep 60 >/dev/null 2>&1 & echo $! >"$CALLS.rank1"
  wait $!; rm "$CALLS.rank1"; echo "bench_train_step: rank 0 of 2: rank 1 left the world"; exit 1
esac
echo '{"together_ms": 10.0, "alone_ms": 8.0}'
"""
# As `lockstep run`: the first word that is a file is the program.
LAUNCHER = """#!/bin/sh
case $1 in
  doctor) echo "  NCCL    $NCCL, libnccl.so.2"; exit;;
  status) [ ! -f "$CALLS.rank1" ] || echo '[{"ranks":[{"rank":1,"pid":'$(cat "$CALLS.rank1")',"last":{"sequence":300}}]}]'; exit;;
esac
echo "launcher $*" >>"$CALLS"
while [ $# -gt 0 ] && [ ! -x "$1" ]; do shift; done
[ $# -eq 0 ] || exec "$@"
"""
PROGRAMS = {"test_device": TESTS, "test_parity": TESTS, "bench_train_step": STEP, "lockstep": LAUNCHER,
            "mnist_cnn": "#!/bin/sh\necho 'epoch 2/2  train 99.00 %  test 97.50 %'\n",
            "bench_device": "#!/bin/sh\necho '{\"wrong\": 0}'\n", "cmake": "#!/bin/sh\necho \"cmake $*\" >>\"$CALLS\"\n"}


class ProveGpu(unittest.TestCase):
    def setUp(self):
        self.tool = load("prove-gpu")
        self.tool.Proof.look_at_torch = lambda proof, torch: setattr(proof, "torch_fault", "no torch")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def prove(self, gpus, *arguments, why="", failing="", nccl="2.30.7", **environment):
        """Exit status, report, and what was started, on a machine with so many GPUs."""
        self.tool.count_gpus = lambda: (gpus, why)
        programs = self.folder / "build" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name, text in PROGRAMS.items():
            (programs / name).write_text(text % failing if text == TESTS else text)
            (programs / name).chmod(0o755)
        report, calls = self.folder / "report.md", self.folder / "calls"
        changed = {"CALLS": str(calls), "NCCL": nccl, "PATH": f"{programs}:{os.environ['PATH']}", **environment}
        with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.dict(os.environ, changed):
            status = self.tool.main(["--build", str(programs.parent), "--report", str(report), *arguments])
        return status, report.read_text(), calls.read_text() if calls.exists() else ""

    def test_without_a_gpu_the_report_has_every_part(self):
        status, report, calls = self.prove(0, "--programs", why="no driver")
        self.assertEqual(status, 2)
        self.assertIn("**No GPU**: no driver. Nothing is proven by this report.", report)
        for part in ("build", "collectives: one rank over NCCL", "killed processes", "DistributedDataParallel over NCCL",
                     "step times: resnet50, batch 64", "checkpoints: 2 processes", "compute-sanitizer, memcheck"):
            self.assertRegex(report, rf"\| [^|]*{part}[^|]* \| no GPU \|  \| no GPU: no driver \|")
        self.assertEqual(calls, "")

    def test_one_gpu(self):
        (self.folder / "libnccl.so.2").touch()
        status, report, calls = self.prove(1, "--programs", "--nccl", str(self.folder / "libnccl.so.2"))
        self.assertEqual(status, 0)
        order = ["lockstep doctor", "collectives: one rank over NCCL", "collectives: two processes share GPU 0, nccl",
                 "collectives: two processes share GPU 0, staged", "rank 1 is killed: two processes share GPU 0, nccl",
                 "step times: resnet50", "step times: transformer", "checkpoints: two processes share GPU 0, nccl",
                 "batches that are copied ahead", "mnist_cnn", "all_reduce, 4 KiB to 16 MiB", "compute-sanitizer, memcheck"]
        self.assertEqual(sorted(order, key=lambda name: report.index(f"| {name}")), order)
        self.assertIn("needs 2 GPUs, this machine has 1", report)
        self.assertEqual(len(re.findall(r"passed \| [^|]*\| rank 0 names rank 1; all had ended \d", report)), 2)
        self.assertIn(f"cuda  {self.folder}/build/bin/test_device --gtest_filter=Devices/Collectives.*/nccl1", calls)
        self.assertIn(f"cuda {self.folder}/libnccl.so.2 {self.folder}/build/bin/test_device --gtest_filter=Devices/Streams.*/nccl2", calls)
        for option in ("--share-gpus", "--share-gpus=nccl"):
            self.assertIn(f"launcher run -q -n 2 --gpus 0 {option} {self.folder}/build/bin/test_device", calls)
        self.assertIn("| resnet50 | 64 | 1 | one rank of plain LibTorch | 5 | 8.00 | 8.00 to 8.00 | 0.800 |", report)
        self.assertNotIn("test_parity", calls)

    def test_two_gpus_of_which_every_test_fails(self):
        failing = 'echo "the disk is full"; echo "[  FAILED  ] 1 test, listed below:"; exit 1'
        status, report, calls = self.prove(2, "--programs", "--parts", "devices", "parity", "steps", nccl="2.28.9", failing=failing)
        self.assertEqual(status, 1)
        self.assertRegex(report, r"## Failed: parameters [^#]*\$ .*/test_parity\n(?s:.*)the disk is full")
        self.assertIn("3 passed, 1 failed, 2 skipped, exit status 1", report)
        self.assertIn("launcher run -q -n 2 --gpus 0,1", calls)
        self.assertNotRegex(calls, "-n 3|--share-gpus=nccl")
        self.assertIn("ranks share a GPU over NCCL 2.30 or newer, this one is 2.28: name a newer one with --nccl", report)
        self.assertIn("| transformer | 32 | 2 | Lockstep |", report)

    def test_the_gpus_that_the_environment_lists(self):
        for visible, first, second in (("3,1", "3", "3,1"), ("GPU-ab, GPU-cd,GPU-none", "GPU-ab", "GPU-ab,GPU-cd")):
            _, report, calls = self.prove(2, "--programs", "--parts", "devices", CUDA_VISIBLE_DEVICES=visible)
            lists = set(re.findall(r"^launcher run -q -n (\S+) --gpus (\S+)", calls, re.M))
            self.assertEqual(lists, {("1", first), ("2", first), ("2", second)})
            self.assertIn(f"| GPUs that a process can use | {second.replace(',', ', ')} |", report)
            (self.folder / "calls").unlink()

    def test_limits(self):
        self.tool.LEAST_TIME = 0
        _, report, _ = self.prove(1, "--programs", "--timeout", "1", "--budget", "2", failing="sleep 60")
        self.assertRegex(report, r"collectives: one rank over NCCL \| \*\*failed\*\* \| 1 s \| did not end within 1 s")
        self.assertRegex(report, r"\| skipped \| . s \| did not end in the . s that were left of the budget")
        self.assertRegex(report, r"step times: cnn[^|]*\| skipped \|  \| the budget of 2 s is used up")

    def test_a_libtorch_that_is_given_needs_no_network(self):
        torch = self.folder / "torch/share/cmake/Torch"
        for file in (torch / "TorchConfig.cmake", self.folder / "torch/lib/libtorch_cuda.so", self.folder / "build/commit"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("v7-g123")
        _, report, calls = self.prove(1, "--torch", str(torch), "--parts", "parity")
        self.assertIn("v7-g123", report)
        self.assertRegex(calls, rf"cmake -S .* -DTorch_DIR={torch} .*-DLOCKSTEP_WERROR=OFF\ncmake --build .* test_device")
        self.prove(1, "--torch", str(torch), "--programs", "--parts", "parity")
        self.assertEqual((self.folder / "build/torch").resolve(), self.folder.resolve() / "torch")

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

    def test_arguments(self):
        for arguments, expected in ((["--torch", "/nowhere"], "--torch: got /nowhere, expected the folder of TorchConfig.cmake"),
                                    (["--programs", "--build", "/nowhere"], "which has no bin/test_device"),
                                    (["--timeout", "0"], "--timeout: got 0, expected more than 0"),
                                    (["--parts", "all"], "invalid choice: 'all'"),
                                    (["--report", "/nowhere/report.md"], "whose folder does not exist")):
            run = subprocess.run([ROOT / "tools" / "prove-gpu", *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 2)
            self.assertIn(expected, run.stderr)


if __name__ == "__main__":
    unittest.main()
