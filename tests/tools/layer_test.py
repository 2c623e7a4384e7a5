"""Asks tools/layer for the tests of each layer that tools/check-includes lists."""

import re
import unittest

from tool import ROOT, load, run


def layers():
    return [layer for level in load("check-includes").LAYERS for layer in level if (ROOT / "src" / layer).is_dir()]


class Layer(unittest.TestCase):
    def test_every_layer_has_tests(self):
        build = (ROOT / "tests" / "CMakeLists.txt").read_text()
        names = set(re.findall(r"lockstep_test\(([\w/]+)", build)) | set(re.findall(r"NAME ([\w/]+)", build))
        for folders in re.findall(r"foreach\(folder ([\w\s/]+)\)", build):
            names |= set(folders.split())
        for layer in layers():
            with self.subTest(layer=layer):
                code, output = run("layer", layer, "--list")
                self.assertEqual(code, 0, output)
                self.assertLessEqual({word for word in output.split()[1:]
                                      if not re.match("test_|lockstep_cli|c_", word)}, names)


if __name__ == "__main__":
    unittest.main()
