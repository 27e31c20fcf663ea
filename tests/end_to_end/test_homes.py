"""The 32-billion-parameter deck at a sixty-fourth of its width: the same schedule on four ranks,
with every home, ends in the same numbers; and its memory is where the deck says."""

import os
import pathlib
import subprocess

import pytest

from conftest import FULL, ROOT, losses, metrics

DECK = ROOT / "input_decks" / "vit32b_synthetic_4xv100.toml"
SMALL = {
    "run.device": "cpu",
    "run.threads": 1,
    "run.steps": 3,
    "model.image": 56,
    "model.dim": 128,
    "model.heads": 8,
    "model.mlp": 512,
    "model.classes": 341,
    "optimizer.warmup_steps": 1,
    "optimizer.lr": 1e-3,
    "data.synthetic_train": 64,
    "checkpoint.at_end": "false",
}
HOMES = [
    ("device", "device"),
    ("host", "device"),
    ("host", "host"),
    ("host", "nvme"),
    ("nvme", "device"),
    ("nvme", "host"),
    ("nvme", "nvme"),
]
MESHES = {
    "pipeline": {},
    "pipeline and tensor": {"parallel.pipeline": 2, "parallel.tensor": 2, "parallel.chunks": 20},
    "tensor": {"parallel.pipeline": 1, "parallel.tensor": 4, "parallel.chunks": 40},
}


# 25 million parameters: 505 MB of weights, gradients, masters and moments.
LARGER_THAN_MEMORY = """
[run]
name = "free"
steps = 2
threads = 2
[model]
image = 28
channels = 1
patch = 14
dim = 512
depth = 8
heads = 8
classes = 10
[parallel]
chunks = 8
schedule = "breadth_first"
[batch]
global = 2
micro = 1
[optimizer]
warmup_steps = 1
[data]
format = "synthetic"
synthetic_train = 16
synthetic_test = 4
mean = [0.5]
std = [0.5]
[memory]
gradients = "f32"
recompute = "layers"
checkpoint_every = "chunk"
[checkpoint]
every_steps = 0
at_end = false
"""


@pytest.fixture
def small_machine():
    """A control group: what is started through it has 400 MiB of memory."""
    root = pathlib.Path("/sys/fs/cgroup")
    own = dict(line.split(":")[1:] for line in open("/proc/self/cgroup").read().split())
    one, limit = (
        (root / "memory" / own["memory"].strip("/"), "memory.limit_in_bytes")
        if "memory" in own
        else (root / own[""].strip("/"), "memory.max")
    )
    group = one / f"voltapile_test_{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(400 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group of memory can be made here: {error}")
    yield ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"]
    group.rmdir()


def overrides(keys):
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("mesh", MESHES)
def test_every_home_trains_the_headline_deck_to_the_same_numbers(program, mesh):
    found = {}
    for optimizer, weights in HOMES if FULL else HOMES[:: 2 if mesh == "pipeline" else 4]:
        name = f"{optimizer}_{weights}"
        homes = {
            "run.name": name,
            "memory.optimizer": optimizer,
            "memory.weights": weights,
            "memory.nvme_dir": program.folder / "scratch",
            "memory.gradients": "working",
        }
        program.good("train", DECK, *overrides({**SMALL, **MESHES[mesh], **homes}), ranks=4)
        run = program.folder / "runs" / name
        found[name] = losses(run)
        assert len(found[name]) == 3
        assert not any(line["skipped"] for line in metrics(run))
    first, *others = found.values()
    assert first[3] < first[1]
    for other in others:
        assert other == first


def test_a_folder_that_cannot_hold_the_state_is_an_error_before_the_first_step(program):
    (program.folder / "scratch").write_text("a file")
    keys = {
        **SMALL,
        "memory.optimizer": "nvme",
        "memory.nvme_dir": program.folder / "scratch",
    }
    done = program.run("train", DECK, *overrides(keys), ranks=4)
    assert done.returncode == 2, done.stderr
    for word in ("memory.nvme_dir", "scratch"):
        assert word in done.stderr
    assert not (program.folder / "runs/vit32b/metrics.jsonl").exists()


def test_a_model_beyond_the_machines_memory_trains_from_disk(program, small_machine):
    deck = program.deck(LARGER_THAN_MEMORY)
    disk = {"memory.nvme_dir": program.folder / "scratch", "run.name": "bound"}
    nvme = {**disk, "memory.optimizer": "nvme", "memory.weights": "nvme"}

    def on_small_machine(keys):
        return subprocess.run(
            [*small_machine, *program.command(0, "train", deck, *overrides(keys))],
            cwd=program.folder,
            env=program.environment,
            text=True,
            capture_output=True,
            timeout=300,
        )

    refused = on_small_machine(disk)
    assert refused.returncode == 3, refused.stderr
    assert 'memory.optimizer = "nvme"' in refused.stderr, refused.stderr
    done = on_small_machine(nvme)
    assert done.returncode == 0, done.stderr
    program.good("train", deck)
    runs = program.folder / "runs"
    assert losses(runs / "bound") == losses(runs / "free")
