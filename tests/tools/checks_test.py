"""Plants one bad #include or link at a time and expects tools/check-includes or tools/check-links to name it."""

import subprocess
import sys
import tempfile
import unittest

from tool import ROOT, check, write


class Programs(unittest.TestCase):
    def test_end_with_1_after_an_offence(self):
        for tool, file, text in (("check-includes", "src/core/a.h", '#pragma once\n\n#include "kernels/reduce.h"\n'),
                                 ("check-links", "README.md", "[a page](docs/missing.md)\n")):
            with tempfile.TemporaryDirectory() as root:
                write(root, {file: text, "src/kernels/reduce.h": "#pragma once\n"})
                ended = subprocess.run([sys.executable, ROOT / "tools" / tool, root], capture_output=True)
            self.assertEqual(ended.returncode, 1, ended)


class CheckIncludes(unittest.TestCase):
    def expect_offence(self, file: str, included: str, reason: str) -> None:
        """included names a file, by its path from the root, or a foreign header in <>."""
        files = {file: f"#pragma once\n\n#include {included}\n"}
        if included.startswith('"'):
            path = included[1:-1]
            files.setdefault(path, "#pragma once\n")
            included = '"' + path.removeprefix("extras/include/").removeprefix("include/").removeprefix("src/") + '"'
            files[file] = f"#pragma once\n\n#include {included}\n"
        code, output = check("check-includes", files)
        self.assertEqual(code, 1, output)
        self.assertIn(f"{file}:3: includes {included[1:-1]}", output)
        self.assertIn(reason, output)

    def test_upwards(self):
        self.expect_offence("src/core/a.h", '"src/kernels/reduce.h"', "core may not use kernels")
        self.expect_offence("src/comm/a.cpp", '"include/lockstep/group.h"', "comm may not use group")
        self.expect_offence("src/group/a.cpp", '"src/sync/b.h"', "group may not use sync")
        self.expect_offence("include/lockstep/init.h", '"include/lockstep/lockstep.h"', "group may not use lockstep.h")

    def test_layers_within_comm(self):
        self.expect_offence("src/comm/control/a.h", '"src/comm/operation.h"', "comm/control may not use comm")
        self.expect_offence("src/comm/control/a.h", "<torch/nn/module.h>", "built without LibTorch")
        self.expect_offence("src/comm/a.cpp", '"src/comm/host/world/arena.h"', "comm may not use comm/host")
        self.expect_offence("src/comm/messages/a.cpp", '"src/comm/mpi/mpi.h"', "comm/messages may not use comm/mpi")
        self.expect_offence("src/comm/messages/a.h", "<torch/nn/module.h>", "built without LibTorch")
        self.expect_offence("src/comm/mpi/a.cpp", '"src/comm/host/world/arena.h"', "comm/mpi may not use comm/host")

    def test_layers_within_parallel(self):
        self.expect_offence("src/parallel/reducer/a.cpp", '"src/parallel/update/b.h"', "parallel/reducer may not use parallel/update")
        self.expect_offence("src/parallel/buckets/a.cpp", '"src/parallel/reducer/b.h"', "parallel/buckets may not use parallel/reducer")

    def test_sideways(self):
        self.expect_offence("src/launch/a.h", '"include/lockstep/group.h"', "launch may not use group")
        self.expect_offence("src/data/a.h", '"src/sync/b.h"', "data may not use sync")

    def test_public_headers_include_public_headers(self):
        self.expect_offence("include/lockstep/group.h", '"src/comm/operation.h"', "public headers only")

    def test_extras(self):
        self.expect_offence("src/checkpoint/a.cpp", '"extras/include/lockstep/learning_rate.h"', "checkpoint may not use extras")
        self.expect_offence("src/data/a.cpp", '"extras/data/idx.h"', "data may not use extras")
        self.expect_offence("include/lockstep/checkpoint.h", '"extras/include/lockstep/datasets.h"', "checkpoint may not use extras")
        self.expect_offence("extras/optim/a.cpp", '"src/parallel/reducer/reducer.h"', "those of OPEN_TO_EXTRAS")
        self.expect_offence("extras/include/lockstep/datasets.h", '"extras/data/idx.h"', "public headers only")
        self.expect_offence("extras/include/lockstep/datasets.h", '"src/core/text.h"', "public headers only")
        self.expect_offence("extras/data/a.h", "<torch/torch.h>", "narrow")
        code, output = check("check-includes", {"extras/data/a.h": "#pragma once\n", "src/data/a.h": "#pragma once\n"})
        self.assertEqual(code, 1)
        self.assertIn("has the name of", output)

    def test_libtorch_below_groups(self):
        for included in ("<torch/nn/module.h>", "<ATen/core/Tensor.h>", "<c10/core/Device.h>"):
            self.expect_offence("src/comm/a.cpp", included, "built without LibTorch")
        self.expect_offence("cli/run.cpp", '"include/lockstep/group.h"', "built without LibTorch")

    def test_foreign_headers(self):
        self.expect_offence("src/core/a.h", "<CLI/CLI.hpp>", "include that library in a .cpp")
        self.expect_offence("src/comm/mpi/a.h", "<mpi.h>", "no MPI")
        self.expect_offence("src/parallel/a.h", "<torch/torch.h>", "narrow")
        self.expect_offence("src/logging/a.h", "<nlohmann/json.hpp>", "include that library in a .cpp")

    def test_names_that_occur_twice(self):
        code, output = check("check-includes", {"src/core/a.h": "#pragma once\n", "src/group/a.h": "#pragma once\n"})
        self.assertEqual(code, 1)
        self.assertIn("src/group/a.h: has the name of src/core/a.h", output)

    def test_unknown_layer(self):
        code, output = check("check-includes", {"src/attic/a.h": "#pragma once\n"})
        self.assertEqual(code, 1)
        self.assertIn("attic is no layer", output)

    def test_nothing_to_check(self):
        self.assertEqual(check("check-includes", {"README.md": ""})[0], 1)

    def test_what_is_allowed(self):
        headers = ("src/comm/control/b.h", "include/lockstep/error.h", "include/lockstep/samplers.h",
                   "include/lockstep/strategy.h", "bench/ranks.h", "src/launch/plan.h", "src/core/text.h",
                   "extras/include/lockstep/extras.h", "extras/data/idx.h")
        code, output = check("check-includes", {name: "#pragma once\n" for name in headers} | {
            "src/core/log.cpp": "#include <nlohmann/json.hpp>\n",
            "src/comm/host/a.cpp": "#include \"comm/control/b.h\"\n",
            "src/comm/mpi/a.cpp": "#include <mpi.h>\n#include \"lockstep/error.h\"\n",
            "src/logging/a.cpp": "#include <nlohmann/json.hpp>\n#include \"lockstep/samplers.h\"\n",
            "include/lockstep/lockstep.h": "#include \"lockstep/strategy.h\"\n#include \"lockstep/extras.h\"\n",
            "extras/data/idx.cpp": "#include \"extras/data/idx.h\"\n#include \"core/text.h\"\n#include \"lockstep/samplers.h\"\n",
            "bench/peers/a.cpp": "#include <mpi.h>\n",
            "cli/run.cpp": "#include \"bench/ranks.h\"\n#include \"launch/plan.h\"\n",
        })
        self.assertEqual(code, 0, output)
        self.assertIn("0 offences", output)


class CheckLinks(unittest.TestCase):
    def expect_offence(self, link: str, reason: str) -> None:
        code, output = check("check-links", {"docs/page.md": f"# Page\n\ntext\n{link}\n", "docs/other.md": "# Other page\n"})
        self.assertEqual(code, 1, output)
        self.assertIn("docs/page.md:4: link", output)
        self.assertIn(reason, output)

    def test_missing_files(self):
        self.expect_offence("[a](nowhere.md)", "'nowhere.md' names no file")
        self.expect_offence("![a](picture.svg)", "names no file")
        self.expect_offence('<img alt="a" src="picture.svg">', "names no file")
        self.expect_offence("[a]: nowhere.md", "names no file")

    def test_missing_anchors(self):
        self.expect_offence("[a](#nowhere)", "names no heading of docs/page.md")
        self.expect_offence("[a](other.md#page)", "names no heading of docs/other.md")

    def test_targets_that_no_site_can_serve(self):
        self.expect_offence("[a](/docs/other.md)", "is absolute")
        self.expect_offence("[a](../../other.md)", "leaves the repository")
        self.expect_offence("[a]()", "is empty")

    def test_pages_that_sources_name(self):
        code, output = check("check-links", {"src/a.h": "\n/// docs/page.md#nowhere says more.\n", "docs/page.md": "# Page\n"})
        self.assertEqual(code, 1)
        self.assertIn("src/a.h:2: link 'docs/page.md#nowhere' names no heading", output)

    def test_nothing_to_check(self):
        self.assertEqual(check("check-links", {"src/a.h": ""})[0], 1)

    def test_what_is_allowed(self):
        code, output = check("check-links", {
            "README.md": "# A `name`, and *more*: 2\n\n## Twice\n\n## Twice\n\n"
                         "[a](#a-name-and-more-2) [b\nb](#twice-1) [c](docs) [d](src/a.h#L2)\n"
                         "[e](https://example.com/x#y) [f](docs/page.md#ünder)\n\n"
                         "    [code](nowhere.md)\n\n```\n[code](nowhere.md)\n```\n\n`[code](nowhere.md)`\n",
            "docs/page.md": "# Ünder\n\n<a id=\"named\"></a>\n[a](../README.md) [b](#named)\n",
            "src/a.h": "\n// docs/page.md#named\n",
            "build/page.md": "[a](nowhere.md)\n",
        })
        self.assertEqual(code, 0, output)
        self.assertIn("2 pages, 0 offences", output)


if __name__ == "__main__":
    unittest.main()
