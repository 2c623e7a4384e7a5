"""Builds the project of tests/install over the package, and runs its programs with the package's launcher."""

import os

from conan import ConanFile
from conan.tools.cmake import CMake, cmake_layout


class LockstepTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain", "VirtualRunEnv"

    def requirements(self):
        self.requires(self.tested_reference_str, run=True)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=os.path.join(self.recipe_folder, "..", "..", "tests", "install"))
        cmake.build()

    def test(self):
        self.run(f"lockstep run -n 2 {self.build_folder}/outside", env="conanrun")
