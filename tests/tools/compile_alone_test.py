"""Gives tools/compile-alone the commands of files that lack an include, and of files that do not."""

import importlib.machinery
import importlib.util
import json
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "compile-alone"


def load():
    loader = importlib.machinery.SourceFileLoader("compile_alone", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compile_alone", loader))
    loader.exec_module(module)
    return module


class CompileAlone(unittest.TestCase):
    def test_missing_include(self):
        tool = load()
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            (root / "complete.cpp").write_text("#include <string>\nstd::string text;\n")
            (root / "lacking.cpp").write_text("std::string text;\n")
            (root / "other").mkdir()
            (root / "other" / "lacking.cpp").write_text("std::string text;\n")
            files = [root / "complete.cpp", root / "lacking.cpp", root / "other" / "lacking.cpp"]
            (root / "compile_commands.json").write_text(json.dumps(
                [{"directory": name, "file": str(path), "command": f"g++ -o made.o -c {path}"} for path in files]))
            found = tool.commands(root, [root / "complete.cpp", root / "lacking.cpp"])
            errors = dict(tool.compile_each(found, 2))
            self.assertEqual(sorted(errors), files[:2])
            self.assertIsNone(errors[files[0]])
            self.assertIn("string", errors[files[1]])
            self.assertFalse((root / "made.o").exists())


if __name__ == "__main__":
    unittest.main()
