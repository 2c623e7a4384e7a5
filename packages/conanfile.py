"""A Conan 2 package of Lockstep, over the libraries of a Debian or Ubuntu system and the LibTorch that CMake finds there:

    conan create packages -s compiler.cppstd=20
"""

import pathlib
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy
from conan.tools.system.package_manager import Apt


class Lockstep(ConanFile):
    name = "lockstep"
    description = "Data-parallel distributed training for C++ on LibTorch"
    license = "Apache-2.0"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"

    def set_version(self):
        header = pathlib.Path(self.recipe_folder, "..", "include", "lockstep", "version.h").read_text()
        self.version = ".".join(re.findall(r"LOCKSTEP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))

    def export_sources(self):
        root = pathlib.Path(self.recipe_folder).parent
        for folder in ("bench", "cli", "cmake", "docs", "examples", "extras", "include", "src"):
            copy(self, f"{folder}/*", root, self.export_sources_folder)
        for file in ("CHANGELOG.md", "CMakeLists.txt", "LICENSE", "README.md"):
            copy(self, file, root, self.export_sources_folder)

    def system_requirements(self):
        # Names those that are missing; -c tools.system.package_manager:mode=install installs them.
        Apt(self).install(["libcli11-dev", "libhwy-dev", "libsodium-dev", "libxxhash-dev",
                           "nlohmann-json3-dev", "pkg-config", "zlib1g-dev"])

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for name in ("TESTS", "BENCH", "EXAMPLES"):
            toolchain.cache_variables[f"LOCKSTEP_BUILD_{name}"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # Programs find LockstepConfig.cmake of the package itself: find_package(Lockstep REQUIRED)
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/Lockstep"]
