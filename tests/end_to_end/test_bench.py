"""`voltapile bench` at its smallest: that it measures everything, not how fast anything is."""

import math
import os
import pathlib
import re
import tomllib

import pytest

from conftest import ROOT

DEVICE = os.environ.get("VOLTAPILE_TEST_DEVICE", "cpu")


@pytest.fixture(autouse=True)
def gpu(program):
    """Skips, and says why, where a GPU is asked for and there is none."""
    if DEVICE == "cuda":
        done = program.run("bench", "--device", "cuda", "--quick", "--only", "add")
        if done.returncode == 2:
            pytest.skip(done.stderr.strip())


def kernels_of_the_header():
    text = (ROOT / "include/voltapile/device/kernels.hpp").read_text()
    return set(re.findall(r"virtual void (\w+)\(", text))


def documented_keys():
    """{section: keys} of the tables below "A hardware file" in docs/FILES.md."""
    page = (ROOT / "docs/FILES.md").read_text().split("## A hardware file\n")[1].split("\n## ")[0]
    keys = {}
    for section, names in re.findall(r"^\| `\[+(\w+)\]+` \| ([^|]*) \|", page, re.MULTILINE):
        keys.setdefault(section, set()).update(re.findall(r"`(\w+)`", names))
    return keys


def entries(file):
    """(section, table) of every table of the file."""
    for section, value in file.items():
        for table in value if isinstance(value, list) else [value]:
            yield section, table


def good(number):
    return math.isfinite(number) and number > 0


@pytest.mark.parametrize("ranks,type_name", [(1, "f32"), (2, "bf16")])
def test_everything_is_measured_and_written(program, ranks, type_name):
    out = program.good(
        *("bench", "--device", DEVICE, "--type", type_name, "--quick"),
        *("--disk", program.folder, "--write", "hardware.toml"),
        ranks=0 if ranks == 1 else ranks,
    )
    assert max(len(line) for line in out.splitlines()) <= 100
    table = out.split("\nKernels")[1].split("\n\n")[0]
    shown = {line.split()[0] for line in table.splitlines()[1:]} - {"share:"}
    assert shown == kernels_of_the_header()

    file = tomllib.loads((program.folder / "hardware.toml").read_text())
    known = documented_keys()
    for section, entry in entries(file):
        assert set(entry) == known[section], section
    assert set(file) == set(known) - (set() if ranks > 1 else {"communication"})
    assert file["hardware"]["ranks"] == ranks
    assert file["hardware"]["type"] == type_name
    for name, value in file["ceilings"].items():
        assert good(value), name
    assert {k["name"] for k in file["kernels"]} == kernels_of_the_header()
    timed = file["kernels"] + file["training"] + file.get("communication", [])
    for entry in timed:
        assert 0 < entry["lowest_seconds"] <= entry["seconds"] <= entry["highest_seconds"], entry
    for kernel in file["kernels"]:
        assert good(kernel["share"]) and good(kernel["bytes"]), kernel
        assert kernel["bound"] in ("memory", "arithmetic", "launch")
        products = kernel["name"].startswith(("linear", "attention"))
        assert (kernel["flops"] > 0) == products, kernel
    if DEVICE == "cuda":
        assert file["hardware"]["overhead_bytes"] > 0
    deck = program.deck()
    page = program.good("plan", deck, "--hardware", "hardware.toml")
    assert "it is written meanwhile in" in " ".join(page.split()), page
    if ranks > 1:
        sizes = {n: [] for n in ("all_reduce", "point_to_point")}
        for entry in file["communication"]:
            sizes[entry["name"]].append(entry["bytes"])
            assert good(entry["bytes_per_second"])
        assert all(len(set(of_one)) > 1 for of_one in sizes.values())


def test_one_kernel_alone(program):
    out = program.good("bench", "--device", DEVICE, "--quick", "--only", "layer_norm,adamw")
    assert "layer_norm " in out and "adamw" in out
    assert "attention" not in out and "Training" not in out


@pytest.mark.parametrize(
    "arguments,words",
    [
        (("--only", "layernorm"), ("layernorm", "layer_norm")),
        (("--type", "f64"), ("f64",)),
    ],
)
def test_what_is_not_there_is_refused(program, arguments, words):
    done = program.run("bench", "--quick", *arguments)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_one_error(program):
    done = program.run("bench", "--quick", "--device", "cuda")
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1 and "cuda" in done.stderr


def test_a_file_that_cannot_be_written_is_named(program):
    done = program.run("bench", "--quick", "--only", "add", "--write", "nowhere/hardware.toml")
    assert done.returncode != 0
    assert "nowhere/hardware.toml" in done.stderr
