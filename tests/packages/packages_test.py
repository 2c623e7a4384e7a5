"""Checks the files of packages/ as far as that needs neither Docker nor SLURM."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
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


def mapping(required: str = "", **properties) -> dict:
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


class MpiJob(unittest.TestCase):
    """The fields that the manifest uses, as the operator's CustomResourceDefinition and Kubernetes define them."""

    TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
    CONTAINER = mapping("name image command", name=TEXT, image=TEXT, command={"type": "array", "items": TEXT},
                        env={"type": "array", "items": mapping("name value", name=TEXT, value=TEXT)},
                        resources=mapping(limits={"type": "object", "additionalProperties": TEXT}))
    TEMPLATE = mapping("spec", spec=mapping("containers", containers={"type": "array", "items": CONTAINER}))
    REPLICAS = mapping("replicas template", replicas=NUMBER, template=TEMPLATE)
    SPEC = mapping("mpiReplicaSpecs", slotsPerWorker=NUMBER, launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
                   runPolicy=mapping(cleanPodPolicy={"enum": ["None", "Running", "All"]}, backoffLimit=NUMBER),
                   mpiReplicaSpecs=mapping("Launcher Worker", Launcher=REPLICAS, Worker=REPLICAS))
    JOB = mapping("apiVersion kind metadata spec", apiVersion={"const": "kubeflow.org/v2beta1"}, kind={"const": "MPIJob"},
                  metadata=mapping("name", name=TEXT), spec=SPEC)

    @unittest.skipUnless(importlib.util.find_spec("yaml") and importlib.util.find_spec("jsonschema"), "no yaml or no jsonschema")
    def test_manifest(self):
        import jsonschema
        import yaml

        job = yaml.safe_load((ROOT / "packages/lockstep.mpijob.yaml").read_text())
        jsonschema.validate(job, self.JOB)
        spec = job["spec"]
        launcher, workers = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
        container, = launcher["template"]["spec"]["containers"]
        ranks = int(container["command"][container["command"].index("-n") + 1])
        self.assertEqual(ranks, spec["slotsPerWorker"] * workers["replicas"])
        image = (ROOT / "packages/Dockerfile").read_text()
        folder, program = container["command"][-1].split("/build/bin/")
        self.assertIn(f"WORKDIR {folder}\n", image)
        self.assertTrue((ROOT / f"examples/{program}.cpp").exists(), program)
        self.assertIn("openssh-server", image)
        self.assertEqual(workers["template"]["spec"]["containers"][0]["command"][0], "/usr/sbin/sshd")


class Conan(unittest.TestCase):
    @unittest.skipUnless(shutil.which("conan"), "no conan")
    def test_recipe(self):
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(["conan", "inspect", ROOT / "packages", "--format=json"], env=os.environ | {"CONAN_HOME": home},
                                  check=True, capture_output=True, text=True)
        recipe = json.loads(done.stdout)
        header = (ROOT / "include/lockstep/version.h").read_text()
        self.assertEqual(recipe["version"].split("."), re.findall(r"LOCKSTEP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
        self.assertEqual((recipe["name"], recipe["license"]), ("lockstep", "Apache-2.0"))
        text = (ROOT / "packages/conanfile.py").read_text()
        folders = re.search(r'for folder in \((.*)\)', text)[1]
        for name in re.findall(r"add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text()):
            self.assertTrue(name in ("tests", "python") or f'"{name}"' in folders, name)

    def test_system_packages(self):
        listed = re.search(r"\.install\(\[(.*?)\]\)", (ROOT / "packages/conanfile.py").read_text(), re.S)[1]
        needed = re.search(r"\npackages=\((.*?)\)", (ROOT / "tools/bootstrap").read_text(), re.S)[1]
        optional = {"libjpeg-dev", "libpng-dev"}  # LOCKSTEP_WITH_IMAGES is AUTO
        self.assertEqual(set(re.findall(r'"(.*?)"', listed)) - {"pkg-config"}, set(needed.split()) - optional)


if __name__ == "__main__":
    unittest.main()
