"""Asks tools/layer for the tests of each layer that tools/check-includes lists."""

import re
import subprocess
import sys
import unittest

from tool import ROOT, load


def layers():
    return [layer for level in load("check-includes").LAYERS for layer in level if (ROOT / "src" / layer).is_dir()]


def listed(layer):
    return subprocess.run([sys.executable, "-B", ROOT / "tools" / "layer", layer, "--list"], capture_output=True, text=True)


class Layer(unittest.TestCase):
    def test_every_layer_has_tests(self):
        build = (ROOT / "tests" / "CMakeLists.txt").read_text()
        names = set(re.findall(r"lockstep_test\(([\w/]+)", build)) | set(re.findall(r"NAME ([\w/]+)", build))
        for folders in re.findall(r"foreach\(folder ([\w\s/]+)\)", build):
            names |= set(folders.split())
        for layer in layers():
            with self.subTest(layer=layer):
                run = listed(layer)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertLessEqual({word for word in run.stdout.split()[1:]
                                      if not re.match("test_|lockstep_cli|c_", word)}, names)


if __name__ == "__main__":
    unittest.main()
