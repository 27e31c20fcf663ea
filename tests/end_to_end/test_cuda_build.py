"""The program built with CUDA, on a machine that need not have a GPU or a driver."""

import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import DECK, ROOT

CUDA_DECK = DECK.replace("[run]", '[run]\ndevice = "cuda"')
NVCC = pathlib.Path(os.environ["VOLTAPILE_NVCC"]).resolve()
OBJECTS = pathlib.Path(os.environ["VOLTAPILE_CUDA_OBJECTS"])
ARCHITECTURES = os.environ["VOLTAPILE_GPU_ARCH"].split(",")


@pytest.fixture
def started(program):
    """The program, where the loader starts it: an NCCL may want a newer C library."""
    start = program.run("--version")
    if start.returncode == 127 or "GLIBC" in start.stderr:
        pytest.skip(f"this machine cannot load the program: {start.stderr.strip()}")
    return program


def test_plan_and_ranks_need_no_driver(started):
    deck = started.deck(CUDA_DECK)
    assert started.good("ranks", deck).strip() == "4"
    assert "memory" in started.good("plan", deck).lower()


def test_a_run_on_the_cpu_needs_no_driver_and_is_verified(started):
    started.good("train", started.deck(), ranks=4)
    assert "good." in started.good("verify", "runs/small")


def test_training_on_a_gpu_that_is_not_there_is_one_error(started):
    if pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = started.run("train", started.deck(CUDA_DECK), ranks=4)
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert text.count("error: ") == 1, text
    assert "no usable GPU" in text and 'run.device = "cpu"' in text, text


def code_of(source, listing):
    """What cuobjdump says of a kernel file's object."""
    cuobjdump = NVCC.with_name("cuobjdump")
    if not cuobjdump.exists():
        pytest.skip(f"{cuobjdump} is not there")
    environment = {**os.environ, "PATH": f"{NVCC.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [cuobjdump, listing, OBJECTS / f"{source}.o"],
        env=environment,
        text=True,
        capture_output=True,
        check=True,
    ).stdout


@pytest.mark.skipif("70" not in ARCHITECTURES, reason="not built for sm_70")
@pytest.mark.parametrize("source", ["attention_volta.cu", "attention_volta_backward.cu"])
def test_volta_gets_code_for_its_tensor_cores(source):
    assert "HMMA.884.F32.F32" in code_of(source, "-sass")


@pytest.mark.skipif("90" not in ARCHITECTURES, reason="not built for sm_90")
def test_hopper_gets_code_for_its_warpgroup_products():
    assert "HGMMA" in code_of("attention_hopper.cu", "-sass")


def test_every_kernel_has_machine_code_for_every_gpu_asked_for():
    sources = sorted(path.stem for path in OBJECTS.glob("*.cu.o"))
    assert sources
    for source in sources:
        listing = code_of(source, "-lelf")
        for architecture in ARCHITECTURES:
            own = "90a" if architecture == "90" and source.endswith("_hopper.cu") else architecture
            assert f"sm_{own}.cubin" in listing, source


def test_volta_with_cuda_13_is_refused_when_configuring(tmp_path):
    version = subprocess.run([NVCC, "--version"], text=True, capture_output=True, check=True).stdout
    if "release 12." in version:
        pytest.skip("this build's CUDA can compile for Volta")
    meson = shutil.which("meson")
    assert meson is not None
    done = subprocess.run(
        [meson, "setup", tmp_path / "build", ROOT, "-Dcuda=enabled", "-Dgpu_arch=70"],
        env={**os.environ, "PATH": f"{NVCC.parent}:{os.environ['PATH']}"},
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0
    assert "gpu_arch=70 (Volta) needs CUDA 12" in done.stdout
