"""Runs the programs of README.md, docs/collectives.md and docs/getting-started.md as the pages say: on 2 ranks, with a rank
that is killed, and again on 3 ranks from the checkpoint.

    programs_test.py SOURCE BIN
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE, BIN = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
LOCKSTEP, PROGRAMS = BIN / "lockstep", BIN / "doc_samples"


def run(ranks, *arguments, folder):
    done = subprocess.run([LOCKSTEP, "run", "-n", str(ranks), PROGRAMS, *arguments], cwd=folder, capture_output=True,
                          text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def pid_of_rank(launcher, rank):
    """The process that the launcher started as this rank."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"\nPPid:\t{launcher}\n" in (entry / "status").read_text():
                if f"LOCKSTEP_RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
        except OSError:
            continue  # it has ended, or is another user's
    raise AssertionError(f"the launcher has no rank {rank}")


class Programs(unittest.TestCase):
    def test_readme(self):
        code, output = run(2, "readme", folder=SOURCE)
        self.assertEqual(code, 0, output)
        self.assertGreater(float(output.split("epoch 3: accuracy ")[1].split()[0]), 0.8, output)

    def test_collectives(self):
        code, output = run(2, "contrastive", folder=SOURCE)
        self.assertEqual(code, 0, output)
        first, last = (float(output.split(f"step {step}: loss ")[1].split()[0]) for step in (1, 41))
        self.assertLess(last, first / 2, output)

    def test_getting_started(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [LOCKSTEP, "run", "-n", "2", PROGRAMS, "regression", "1000000"]
            with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
                first = job.stdout.readline()
                self.assertIn("epoch 1 on 2 ranks: loss ", first)
                os.kill(pid_of_rank(job.pid, 1), signal.SIGKILL)
                rest, errors = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 128 + signal.SIGKILL, errors)
            self.assertIn("rank 1 of 2 failed first: it was ended by SIGKILL", errors)

            done = rest.count("\nepoch ") + rest.startswith("epoch ") + 1
            saved = len(list(pathlib.Path(folder, "checkpoints").glob("checkpoint-*.safetensors")))
            self.assertGreater(saved, 0)
            code, output = run(3, "regression", str(done + 2), folder=folder)
            self.assertEqual(code, 0, output)
            self.assertRegex(output, r"resumed: \d+ epochs are done")
            self.assertIn(f"epoch {done + 2} on 3 ranks: loss ", output)
            report = subprocess.run([LOCKSTEP, "report", "log"], cwd=folder, capture_output=True, text=True)
            self.assertEqual(report.returncode, 0, report.stderr)
            self.assertIn("train_loss", pathlib.Path(folder, "log", "report.html").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
