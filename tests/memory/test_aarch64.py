"""The kernel for another processor: cross-built, and run by an emulator."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import fastweights

KERNEL = Path(fastweights.__file__).parent / "memory" / "kernel"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


@pytest.mark.skipif(not (KERNEL / "CMakeLists.txt").exists(), reason="the kernel's sources are not installed")
@pytest.mark.skipif(not all(map(shutil.which, (COMPILER, EMULATOR, "cmake"))), reason=f"no {COMPILER} or {EMULATOR}")
def test_a_step_of_the_kernel_on_aarch64(tmp_path):
    target = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    run("cmake", "-S", KERNEL, "-B", tmp_path, *target, "-DFASTWEIGHTS_OPTIMIZATION=-O1")
    run("cmake", "--build", tmp_path)
    (library,) = tmp_path.glob("libfastweights_*.so")  # the builds for x86-64 are left out
    program = tmp_path / "step"
    run(COMPILER, "-O1", "-I", KERNEL, Path(__file__).parent / "step.cpp", "-o", program, "-ldl")
    openmp = Path(run(COMPILER, "-print-file-name=libgomp.so.1").strip()).parent
    paths = f"LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib:{openmp}"
    said = run(EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-E", paths, program, library)
    assert said.count("differs by at most") == 2


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
