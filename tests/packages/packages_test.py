"""Checks the files of packages/ as far as that needs neither Docker nor SLURM."""

import pathlib
import re
import shlex
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "WORKDIR"}


def check_shell(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Instruction and argument, with continued lines joined."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


class Dockerfile(unittest.TestCase):
    def setUp(self):
        self.steps = instructions((ROOT / "packages/Dockerfile").read_text())

    def test_instructions(self):
        self.assertEqual(self.steps[0], ("FROM", "debian:12"))
        for name, argument in self.steps:
            self.assertIn(name, INSTRUCTIONS)
            if name == "RUN":
                check_shell(argument)
        self.assertEqual(self.steps[-1][0], "CMD")

    def test_copied_files_and_commands_exist(self):
        for name, argument in self.steps:
            if name == "COPY":
                for source in shlex.split(argument)[:-1]:
                    self.assertTrue((ROOT / source).exists(), source)
        text = "\n".join(argument for _, argument in self.steps)
        for target in re.findall(r"(?m)(?:^|&& )make ([a-z]+)", text):
            self.assertRegex((ROOT / "Makefile").read_text(), rf"(?m)^{target}:")
        program = re.search(r"build/bin/(\w+)", text)[1]
        self.assertTrue((ROOT / f"examples/{program}.cpp").exists(), program)

    def test_build_trees_are_left_out(self):
        self.assertLessEqual({".git", ".venv", "build*"}, set((ROOT / ".dockerignore").read_text().split()))


class Sbatch(unittest.TestCase):
    def setUp(self):
        self.text = (ROOT / "packages/lockstep.sbatch").read_text()

    def test_syntax(self):
        check_shell(self.text)

    def test_options_precede_the_first_command(self):
        # sbatch ignores its lines after the first command.
        head, _, rest = self.text.partition("\nset -euo pipefail\n")
        self.assertNotRegex(rest, "(?m)^#SBATCH")
        options = re.findall(r"(?m)^#SBATCH (.*)", head)
        self.assertGreater(len(options), 3)
        for option in options:
            self.assertRegex(option, r"^--[a-z-]+(=\S+)?$")


if __name__ == "__main__":
    unittest.main()
