"""Plants one bad #include at a time and expects tools/check-includes to name it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "check-includes"


def check(files: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


class CheckIncludes(unittest.TestCase):
    def expect_offence(self, file: str, included: str, reason: str) -> None:
        code, output = check({file: f"#pragma once\n\n#include {included}\n"})
        self.assertEqual(code, 1, output)
        self.assertIn(f"{file}:3: includes {included[1:-1]}", output)
        self.assertIn(reason, output)

    def test_upwards(self):
        self.expect_offence("lockstep/core/a.h", '"lockstep/kernels/reduce.h"', "core may not use kernels")
        self.expect_offence("lockstep/comm/host/a.cpp", '"lockstep/group.h"', "comm may not use group")
        self.expect_offence("lockstep/group.cpp", '"lockstep/sync/a.h"', "group may not use sync")
        self.expect_offence("lockstep/init.h", '"lockstep/lockstep.h"', "group may not use lockstep.h")

    def test_room_within_a_room(self):
        file = "lockstep/comm/control/a.h"
        self.expect_offence(file, '"lockstep/comm/work.h"', "comm/control may not use comm")
        self.expect_offence(file, "<torch/nn/module.h>", "built without LibTorch")

    def test_sideways(self):
        self.expect_offence("lockstep/launch/a.h", '"lockstep/group.h"', "launch may not use group")
        self.expect_offence("lockstep/data/a.h", '"lockstep/sync/a.h"', "data may not use sync")

    def test_libtorch_below_groups(self):
        for included in ("<torch/nn/module.h>", "<ATen/core/Tensor.h>", "<c10/core/Device.h>"):
            self.expect_offence("lockstep/comm/a.cpp", included, "built without LibTorch")
        self.expect_offence("cli/run.cpp", '"lockstep/group.h"', "built without LibTorch")

    def test_foreign_headers(self):
        self.expect_offence("lockstep/train/a.cpp", "<fmt/format.h>", "only core")
        self.expect_offence("lockstep/core/a.h", "<spdlog/spdlog.h>", "users need not")
        self.expect_offence("lockstep/comm/mpi/a.h", "<mpi.h>", "no MPI")
        self.expect_offence("lockstep/parallel/a.h", "<torch/torch.h>", "narrow")
        self.expect_offence("lockstep/train/a.h", "<nlohmann/json.hpp>", "users need not")

    def test_unknown_room(self):
        code, output = check({"lockstep/attic/a.h": "#pragma once\n"})
        self.assertEqual(code, 1)
        self.assertIn("attic is no room", output)

    def test_nothing_to_check(self):
        self.assertEqual(check({"README.md": ""})[0], 1)

    def test_what_is_allowed(self):
        code, output = check({
            "lockstep/core/log.cpp": "#include <spdlog/spdlog.h>\n",
            "lockstep/comm/host/a.cpp": "#include \"lockstep/comm/control/a.h\"\n",
            "lockstep/comm/mpi/a.cpp": "#include <mpi.h>\n#include \"lockstep/core/error.h\"\n",
            "lockstep/train/a.cpp": "#include <nlohmann/json.hpp>\n#include \"lockstep/data/mnist.h\"\n",
            "lockstep/lockstep.h": "#include \"lockstep/parallel/a.h\"\n",
            "bench/peers/a.cpp": "#include <mpi.h>\n",
            "cli/run.cpp": "#include \"bench/ranks.h\"\n#include \"lockstep/launch/plan.h\"\n",
        })
        self.assertEqual(code, 0, output)
        self.assertIn("0 offences", output)


if __name__ == "__main__":
    unittest.main()
