"""Compares man pages and shell completions with the help of lockstep, from which users take commands and options.

    shell_test.py LOCKSTEP
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = sys.argv.pop(1)


def lockstep(*words: str) -> str:
    return subprocess.run([LOCKSTEP, *words], check=True, capture_output=True, text=True).stdout


def options_of(help_text: str) -> list[str]:
    """-n and --ranks of a line "  -n,--ranks INT   Number of ranks"."""
    found = []
    for line in help_text.splitlines():
        if match := re.match(r"\s+(-\S+)", line):
            found += match[1].split(",")
    return found


def commands_of(help_text: str) -> list[str]:
    listed = help_text.split("Subcommands:")[1]
    return re.findall(r"^  (\w+) ", listed, re.MULTILINE)


COMMANDS = commands_of(lockstep("--help"))
OPTIONS = {command: options_of(lockstep(command, "--help")) for command in COMMANDS}
OPTIONS[""] = options_of(lockstep("--help"))


class Help(unittest.TestCase):
    def test_is_read(self):
        self.assertIn("run", COMMANDS)
        self.assertIn("--version", OPTIONS[""])
        self.assertIn("-n", OPTIONS["run"])
        self.assertIn("--ranks", OPTIONS["run"])


class ManPages(unittest.TestCase):
    def test_have_every_command_and_option(self):
        for command in ["", *COMMANDS]:
            page = lockstep("man", *[command][: bool(command)]).replace("\\-", "-")
            for option in OPTIONS[command]:
                self.assertIn(f"\\fB{option}\\fR", page, command)
        for command in COMMANDS:
            self.assertIn(f"\\fBlockstep-{command}\\fR(1)", lockstep("man").replace("\\-", "-"))

    def test_are_written_into_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            lockstep("man", "--output", folder)
            self.assertEqual({path.name for path in pathlib.Path(folder).iterdir()},
                             {"lockstep.1", *(f"lockstep-{command}.1" for command in COMMANDS)})
            self.assertEqual((pathlib.Path(folder) / "lockstep-run.1").read_text(), lockstep("man", "run"))

    @unittest.skipUnless(shutil.which("groff"), "no groff here")
    def test_are_shown_without_a_warning(self):
        for command in COMMANDS:
            shown = subprocess.run(["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou"], input=lockstep("man", command),
                                   capture_output=True, text=True)
            self.assertEqual(shown.stderr, "", command)
            self.assertIn(f"lockstep-{command} - ", " ".join(shown.stdout.replace("\u2010", "-").split()))

    def test_an_unknown_command_is_refused(self):
        result = subprocess.run([LOCKSTEP, "man", "nosuch"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("got 'nosuch', expected one of: run", result.stderr)


class Bash(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.script = lockstep("completion", "bash")

    def complete(self, *words: str, folder: str = "/") -> list[str]:
        """The completions of the last word. bash divides words at an equals sign."""
        run = subprocess.run(["bash", "--norc", "-c", self.script + '\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n_lockstep\n'
                              'printf "%s\\n" "${COMPREPLY[@]}"', "bash", "lockstep", *words],
                             capture_output=True, text=True, check=True, cwd=folder)
        self.assertEqual(run.stderr, "")
        return run.stdout.split()

    def test_commands_and_options(self):
        self.assertEqual(self.complete(""), COMMANDS)
        self.assertEqual(self.complete("ru"), ["run"])
        self.assertEqual(set(self.complete("-")), set(OPTIONS[""]))
        for command in COMMANDS:
            self.assertEqual(set(self.complete(command, "-")), set(OPTIONS[command]))
        self.assertEqual(self.complete("run", "-n", "2", "--max"), ["--max-restarts"])

    def test_values(self):
        self.assertIn("all_reduce", self.complete("bench", "all"))
        self.assertEqual(self.complete("bench", "all_reduce", "--memory", "p"), ["private"])
        self.assertEqual(self.complete("bench", "all_reduce", "--memory", "=", "p"), ["private"])
        self.assertIn("private", self.complete("bench", "all_reduce", "--memory", "="))
        self.assertEqual(self.complete("run", "-n", ""), [])
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/logs")
            pathlib.Path(f"{folder}/log.txt").touch()
            self.assertEqual(self.complete("run", "--log-dir", "lo", folder=folder), ["logs"])
            self.assertEqual(self.complete("report", "lo", folder=folder), ["logs"])
            self.assertEqual(set(self.complete("report", "-o", "lo", folder=folder)), {"logs", "log.txt"})

    def test_the_program_and_its_words(self):
        self.assertIn("/bin/true", self.complete("run", "-n", "2", "/bin/tru"))
        self.assertIn("true", self.complete("run", "-n", "2", "tru"))
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(f"{folder}/train").touch()
            for before in (["run", "-n", "2"], ["run", "--ranks", "=", "2"], ["run", "--quiet", "--"], ["mpirun"]):
                # Its options are not ours.
                self.assertEqual(self.complete(*before, "./train", "--max", folder=folder), [])
                self.assertEqual(self.complete(*before, "./train", "tr", folder=folder), ["train"])


class OtherShells(unittest.TestCase):
    def test_have_every_command_and_option(self):
        zsh, fish = lockstep("completion", "zsh"), lockstep("completion", "fish")
        for command in COMMANDS:
            self.assertIn(f"'{command}:", zsh)
            self.assertIn(f" -a {command} ", fish)
            zsh_part = zsh.split(f"        {command})\n")[1].split(";;")[0]
            fish_part = "\n".join(line for line in fish.splitlines() if f"seen_subcommand_from {command}'" in line)
            for option in OPTIONS[command]:
                self.assertRegex(zsh_part, rf"\){option}=?\[")
                self.assertIn(f" -l {option[2:]} " if option.startswith("--") else f" -s {option[1:]} ", fish_part)

    def test_are_read_by_their_shells(self):
        for shell in ("bash", "zsh", "fish"):
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=lockstep("completion", shell), text=True, check=True)


if __name__ == "__main__":
    unittest.main()
