"""A run from a deck to its files, on several meshes under mpirun."""

import h5py
import numpy as np
import pytest

from conftest import DECK, FULL, losses, metrics


def test_a_run_leaves_the_files_that_design_promises(program):
    out = program.good("train", program.deck(), ranks=4)
    run = program.folder / "runs" / "small"
    for name in ["deck.toml", "log.txt", "metrics.jsonl", "metrics.h5", "run.lock"]:
        assert (run / name).exists(), name
    assert (run / "checkpoints" / "latest").resolve().name == "step_00000012"
    assert sorted(losses(run)) == list(range(1, 13))
    with h5py.File(run / "metrics.h5") as file:
        length = len(file["train/step"])
        for name in [
            "loss",
            "learning_rate",
            "grad_norm",
            "loss_scale",
            "samples_per_second",
            "seconds",
        ]:
            assert len(file[f"train/{name}"]) == length == 12
        assert file["eval/top1"][-1] <= file["eval/top5"][-1] <= 1
    assert "test accuracy" in out and "Next:" in out
    assert "\r" not in out, "a bar was drawn into a pipe"
    assert "step  5/12" in out and "step 10/12" in out and "step 12/12" in out


def test_losses_are_the_same_on_any_mesh_under_mpirun(program):
    deck = program.deck()
    layouts = [
        (1, []),
        (2, ["--set", "parallel.pipeline=1"]),
        (
            4,
            [
                "--set",
                "parallel.pipeline=2",
                "--set",
                "parallel.data=1",
                "--set",
                "parallel.tensor=2",
                "--set",
                "parallel.schedule=interleaved",
                "--set",
                "parallel.chunks=2",
            ],
        ),
        (
            4,
            [
                "--set",
                "parallel.pipeline=1",
                "--set",
                "parallel.data=1",
                "--set",
                "parallel.tensor=4",
                "--set",
                "memory.recompute=layers",
            ],
        ),
        (
            4,
            [
                "--set",
                "parallel.pipeline=4",
                "--set",
                "parallel.data=1",
                "--set",
                "parallel.schedule=zero_bubble_h1",
            ],
        ),
    ]
    if FULL:
        layouts.append(
            (
                8,
                [
                    "--set",
                    "parallel.tensor=2",
                    "--set",
                    "optimizer.zero=1",
                    "--set",
                    "parallel.schedule=breadth_first",
                    "--set",
                    "parallel.chunks=2",
                ],
            )
        )
    curves = []
    for number, (ranks, overrides) in enumerate(layouts):
        if ranks == 1:
            overrides = ["--set", "parallel.pipeline=1", "--set", "parallel.data=1"]
        program.good("train", deck, "--set", f"run.name=mesh{number}", *overrides, ranks=ranks)
        curve = losses(program.folder / "runs" / f"mesh{number}")
        curves.append([curve[step] for step in sorted(curve)])
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=2e-5)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_sixteen_bit_types_follow_the_f32_curve(program, precision):
    deck = program.deck()
    program.good("train", deck, ranks=4)
    program.good(
        "train", deck, "--set", "run.name=half", "--set", f"precision.type={precision}", ranks=4
    )
    full, half = losses(program.folder / "runs/small"), losses(program.folder / "runs/half")
    np.testing.assert_allclose(
        [half[s] for s in sorted(half)], [full[s] for s in sorted(full)], rtol=0.02
    )


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["batch.micro=8"],
        ["eval.batch=5"],
        ["parallel.data=1"],
        ["parallel.pipeline=1"],
        ["parallel.data=4", "parallel.pipeline=1", "eval.batch=16"],
        ["parallel.data=1", "parallel.tensor=2", "parallel.sequence=true"],
        ["parallel.data=1", "parallel.pipeline=1", "parallel.tensor=4"],
        ["parallel.schedule=breadth_first", "parallel.chunks=2"],
    ],
)
def test_every_test_picture_is_counted_once(program, overrides):
    deck = program.deck()
    changes = [part for text in overrides for part in ("--set", text)]
    program.good("train", deck, ranks=4)
    want = metrics(program.folder / "runs/small", "eval")[-1]
    assert want["samples"] == 37
    ranks = int(program.good("ranks", deck, *changes))
    out = program.good("eval", deck, "--checkpoint", "runs/small", *changes, ranks=ranks)
    assert f"top-1 {100 * want['top1']:.2f} %" in out and "of 37 pictures" in out
    assert f"test loss {want['loss']:.4f}" in out


def test_a_deck_without_a_test_part_trains(program):
    deck = program.deck(DECK.replace("synthetic_test = 37", "synthetic_test = 0"))
    out = program.good("train", deck, ranks=4)
    assert "test accuracy" not in out and len(losses(program.folder / "runs/small")) == 12
    done = program.run("eval", deck, ranks=4)
    assert done.returncode == 2 and "data.synthetic_test" in done.stderr


def test_a_run_without_a_last_checkpoint_is_finished_too(program):
    deck = program.deck(DECK.replace("every_steps = 4", "at_end = false"))
    program.good("train", deck, ranks=4)
    before = (program.folder / "runs/small/metrics.jsonl").read_bytes()
    assert "is finished: 12 steps" in program.good("train", deck, ranks=4)
    assert (program.folder / "runs/small/metrics.jsonl").read_bytes() == before


def test_a_finished_run_says_so_and_more_steps_reopen_it(program):
    deck = program.deck()
    program.good("train", deck, ranks=4)
    before = (program.folder / "runs/small/metrics.jsonl").read_bytes()
    out = program.good("train", deck, ranks=4)
    assert "is finished: 12 steps" in out
    assert (program.folder / "runs/small/metrics.jsonl").read_bytes() == before
    out = program.good("train", deck, "--set", "run.steps=15", ranks=4)
    assert "continuing from" in out
    assert sorted(losses(program.folder / "runs/small")) == list(range(1, 16))


def test_fresh_starts_in_a_numbered_folder(program):
    deck = program.deck(DECK.replace("steps = 12", "steps = 4"))
    for _ in range(3):
        program.good("train", deck, "--fresh", ranks=4)
    names = sorted(path.name for path in (program.folder / "runs").iterdir())
    assert names == ["small", "small.2", "small.3"]
    first, third = losses(program.folder / "runs/small"), losses(program.folder / "runs/small.3")
    assert first == third, "two runs of one deck differ"


def test_a_schedule_given_as_text_trains(program):
    deck = program.deck()
    (program.folder / "my.schedule").write_text(
        "# GPipe by hand: four micro-batches on two ranks\n"
        "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3\n"
        "F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3\n"
    )
    program.good("train", deck, ranks=4)
    program.good(
        "train",
        deck,
        "--set",
        "run.name=mine",
        "--set",
        "parallel.schedule=file",
        "--set",
        "parallel.schedule_file=my.schedule",
        ranks=4,
    )
    ours, theirs = losses(program.folder / "runs/mine"), losses(program.folder / "runs/small")
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-5)
