"""Weights of another program in, a frozen trunk, a new head, and predictions out: all read and
checked by Python alone."""

import csv
import math
import shutil
import struct
import zlib

import h5py
import numpy as np
import pytest

from conftest import DECK, losses, metrics
from test_interchange import stored, write_safetensors

PICTURES = 53  # no batch divides it
DIM, DEPTH, HEADS, MLP, PATCH, SIDE = 32, 4, 4, 128, 4, 12
TOKENS = (SIDE // PATCH) ** 2 + 1

# A class token, as timm's weights have it; pictures that are told apart by a bright quadrant.
TUNE = (
    DECK.replace("patch = 4", 'patch = 4\npool = "token"')
    .replace("classes = 10", "classes = 4")
    .replace(
        'format = "synthetic"\nsynthetic_train = 200\nsynthetic_test = 37\n',
        'format = "idx"\ntrain = "train.idx"\ntrain_labels = "train.labels"\n'
        'test = "test.idx"\ntest_labels = "test.labels"\n',
    )
)
MESHES = {
    "one rank": (0, []),
    "mpirun -n 1": (1, []),
    "the deck's mesh": (4, []),
    "tensor": (4, ["parallel.pipeline=1", "parallel.data=1", "parallel.tensor=4"]),
}


def words(keys):
    return [word for key in keys for word in ("--set", key)]


def write_pictures(folder, name, count, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    pictures = random.integers(0, 120, (count, SIDE, SIDE))
    for picture, label in zip(pictures, labels):
        row, column = 6 * (label // 2), 6 * (label % 2)
        picture[row : row + 6, column : column + 6] += 100
    pictures, labels = pictures.astype(np.uint8), labels.astype(np.uint8)
    head = struct.pack(">IIII", 0x803, count, SIDE, SIDE)
    (folder / f"{name}.idx").write_bytes(head + pictures.tobytes())
    (folder / f"{name}.labels").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    return pictures, labels


def timm_weights(classes):
    """What timm's VisionTransformer(img_size=12, patch_size=4, in_chans=1, embed_dim=32, depth=4,
    num_heads=4) calls its parameters, at random."""
    random = np.random.default_rng(1)
    shapes = {
        "cls_token": (1, 1, DIM),
        "pos_embed": (1, TOKENS, DIM),
        "patch_embed.proj.weight": (DIM, 1, PATCH, PATCH),
        "patch_embed.proj.bias": (DIM,),
        "norm.weight": (DIM,),
        "norm.bias": (DIM,),
        "head.weight": (classes, DIM),
        "head.bias": (classes,),
    }
    for block in range(DEPTH):
        for name, shape in {
            "norm1.weight": (DIM,),
            "norm1.bias": (DIM,),
            "attn.qkv.weight": (3 * DIM, DIM),
            "attn.qkv.bias": (3 * DIM,),
            "attn.proj.weight": (DIM, DIM),
            "attn.proj.bias": (DIM,),
            "norm2.weight": (DIM,),
            "norm2.bias": (DIM,),
            "mlp.fc1.weight": (MLP, DIM),
            "mlp.fc1.bias": (MLP,),
            "mlp.fc2.weight": (DIM, MLP),
            "mlp.fc2.bias": (DIM,),
        }.items():
            shapes[f"blocks.{block}.{name}"] = shape
    ones = ("norm.weight", "norm1.weight", "norm2.weight")
    return {
        name: (0.2 * random.standard_normal(shape) + name.endswith(ones)).astype(np.float32)
        for name, shape in shapes.items()
    }


def norm(x, weights, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def probabilities(pictures, weights):
    """timm's Vision Transformer in numpy and double precision."""
    weights = {name: values.astype(np.float64) for name, values in weights.items()}
    n, side = len(pictures), SIDE // PATCH
    x = (pictures / 255 - 0.5) / 0.5
    x = x.reshape(n, side, PATCH, side, PATCH).transpose(0, 1, 3, 2, 4)
    x = x.reshape(n, side * side, PATCH * PATCH)
    x = x @ weights["patch_embed.proj.weight"].reshape(DIM, -1).T
    x = x + weights["patch_embed.proj.bias"]
    x = np.concatenate([np.repeat(weights["cls_token"], n, 0), x], 1) + weights["pos_embed"]
    erf = np.vectorize(math.erf)
    for block in range(DEPTH):
        b = f"blocks.{block}."
        qkv = linear(norm(x, weights, b + "norm1"), weights, b + "attn.qkv")
        q, k, v = qkv.reshape(n, TOKENS, 3, HEADS, DIM // HEADS).transpose(2, 0, 3, 1, 4)
        scores = softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(DIM // HEADS))
        x = x + linear(
            (scores @ v).transpose(0, 2, 1, 3).reshape(n, TOKENS, DIM), weights, b + "attn.proj"
        )
        h = linear(norm(x, weights, b + "norm2"), weights, b + "mlp.fc1")
        h = h * 0.5 * (1 + erf(h / math.sqrt(2)))
        x = x + linear(h, weights, b + "mlp.fc2")
    return softmax(linear(norm(x, weights, "norm")[:, 0], weights, "head"))


def predicted(folder, files=False):
    with h5py.File(folder / "predictions.h5") as file:
        data = {name: file[name][()] for name in ("index", "classes", "probabilities")}
        assert ("files" in file) == files
        if files:
            data["paths"] = [path.decode() for path in file["files"]["path"]]
        attributes = dict(file.attrs)
    with open(folder / "predictions.csv", newline="", encoding="utf-8") as text:
        rows = list(csv.reader(text))
    if files:
        assert [row.pop(1) for row in rows] == ["path"] + data["paths"]
    count = data["classes"].shape[1]
    assert rows[0] == ["index"] + [
        f"{what}_{k + 1}" for k in range(count) for what in ("class", "probability")
    ]
    table = np.array(rows[1:], dtype=np.float64)
    np.testing.assert_array_equal(table[:, 0], data["index"])
    np.testing.assert_array_equal(table[:, 1::2], data["classes"])
    np.testing.assert_array_equal(table[:, 2::2].astype(np.float32), data["probabilities"])
    return data, attributes


def expect_softmax(data, wanted):
    """Whether the told classes are the most probable ones, with their probabilities."""
    assert data["index"].tolist() == list(range(len(wanted)))
    order = np.argsort(-wanted, axis=1, kind="stable")[:, : data["classes"].shape[1]]
    np.testing.assert_allclose(
        data["probabilities"], np.take_along_axis(wanted, order, 1), atol=2e-5
    )
    np.testing.assert_allclose(
        data["probabilities"], np.take_along_axis(wanted, data["classes"], 1), atol=2e-5
    )


@pytest.fixture(name="pictures")
def written_pictures(program):
    write_pictures(program.folder, "train", 160, 2)
    return write_pictures(program.folder, "test", PICTURES, 3)


def test_timms_weights_a_frozen_trunk_a_trained_head_and_predictions(program, pictures):
    file = program.folder / "timm.safetensors"
    weights = timm_weights(classes=10)
    write_safetensors(file, weights)
    deck = program.deck(TUNE)
    freeze = ["optimizer.freeze=['blocks.*', '*_token', '*_embed*']", "optimizer.lr=0.05"]
    plan = program.good("plan", deck, *words(freeze))
    assert "196 parameters are trained" in plan and "frozen" in plan
    out = program.good("import", file, deck, *words(freeze))
    assert "new, for 4 classes" in out
    run = program.folder / "runs/small"
    program.good("train", deck, *words(freeze), ranks=4)
    steps = losses(run)
    assert steps[12] < 0.8 * steps[1]
    after = stored(run)
    for name, values in weights.items():
        if name.startswith(("head.", "norm.")):
            assert not np.array_equal(after[name], values), name
        else:
            np.testing.assert_array_equal(after[name], values, name)
            assert not stored(run, "optimizer/v")[name].any()

    # What the program says about pictures is what numpy computes from the exported weights.
    program.good("predict", "runs/small", "test.idx", "--out", "said")
    data, attributes = predicted(program.folder / "said")
    expect_softmax(data, probabilities(pictures[0], after))
    assert data["classes"].shape == (PICTURES, 4)
    assert attributes["step"] == 12 and attributes["weights"] == "master"
    assert attributes["checkpoint"].endswith("step_00000012")
    assert "freeze = [" in attributes["deck"] and attributes["pictures"] == "test.idx"
    # As many right as the evaluation counted.
    top1 = metrics(run, "eval")[-1]["top1"]
    assert (data["classes"][:, 0] == pictures[1]).sum() == round(top1 * PICTURES)


@pytest.mark.parametrize("averaged", [False, True])
def test_predictions_do_not_depend_on_the_mesh(program, pictures, averaged):
    more = ["optimizer.ema=0.6", "eval.batch=3", "model.classes=7", "optimizer.layer_decay=0.8"]
    program.good("train", program.deck(TUNE), *words(more[0 if averaged else 1 :]), ranks=4)
    run = program.folder / "runs/small"
    group = "optimizer/ema" if averaged else "model"
    wanted = probabilities(pictures[0], stored(run, group))
    found = {}
    for name, (ranks, mesh) in MESHES.items():
        out = program.folder / name.replace(" ", "_")
        program.good("predict", run, "test.idx", "--out", out, *words(mesh), ranks=ranks)
        found[name], attributes = predicted(out)
        assert attributes["weights"] == ("averaged" if averaged else "master")
        expect_softmax(found[name], wanted)
        assert found[name]["classes"].shape == (PICTURES, 5)
        np.testing.assert_array_equal(found[name]["classes"], found["one rank"]["classes"], name)
    hits = (found["one rank"]["classes"][:, 0] == pictures[1]).sum()
    assert hits == round(metrics(run, "eval")[-1]["top1"] * PICTURES)


def write_png(path, pixels):
    """Of grey pixels (height, width), by zlib alone."""
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    height, width = pixels.shape
    rows = np.hstack([np.zeros((height, 1), np.uint8), pixels]).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("ranks", [0, 4])
def test_a_folder_of_picture_files_is_what_an_idx_file_of_them_is(program, pictures, ranks):
    program.good("train", program.deck(TUNE), "--set", "run.steps=2", ranks=4)
    names = [f'{"ab"[i % 2]}/{i:02}{", é" if i == 7 else ""}.png' for i in range(PICTURES)]
    order = sorted(range(PICTURES), key=lambda i: names[i])
    for name, pixels in zip(names, pictures[0]):
        write_png(program.folder / "folder" / name, pixels)
    (program.folder / "folder/notes.txt").write_text("no picture")
    write_png(program.folder / "folder/.thumbnails/small.png", pictures[0][0])
    program.good("predict", "runs/small", "test.idx", "--out", "of_idx", ranks=ranks)
    program.good("predict", "runs/small", "folder", "--out", "of_folder", ranks=ranks)
    idx, _ = predicted(program.folder / "of_idx")
    folder, attributes = predicted(program.folder / "of_folder", files=True)
    assert folder["paths"] == [names[i] for i in order] and attributes["pictures"] == "folder"
    np.testing.assert_array_equal(folder["classes"], idx["classes"][order])
    np.testing.assert_allclose(folder["probabilities"], idx["probabilities"][order], atol=1e-6)

    shutil.rmtree(program.folder / "of_folder")
    file = program.folder / "folder" / names[order[-1]]
    file.write_bytes(file.read_bytes()[:-20])
    done = program.run("predict", "runs/small", "folder", "--out", "of_folder", ranks=ranks)
    assert done.returncode == 4 and done.stderr.count("error: ") == 1, done.stderr
    assert names[order[-1]] in done.stderr
    assert not list((program.folder / "of_folder").iterdir())


def test_what_cannot_be_predicted_is_one_error(program, pictures):
    program.good("train", program.deck(TUNE), "--set", "run.steps=2", ranks=4)
    (program.folder / "folder").mkdir()
    (program.folder / "file").write_text("no folder")
    for code, parts, arguments in (
        (4, ("pictures", "folder", "*.png"), ("runs/small", "folder")),
        (4, ("nothing.idx", "no such file"), ("runs/small", "nothing.idx")),
        (4, ("train.labels", "labels"), ("runs/small", "train.labels")),
        (4, ("runs/none", "index.h5"), ("runs/none", "test.idx")),
        (2, ("--out file",), ("runs/small", "test.idx", "--out", "file")),
        (2, ("eval.btach",), ("runs/small", "test.idx", "--set", "eval.btach=2")),
    ):
        for ranks in (0, 4):
            done = program.run("predict", *arguments, ranks=ranks)
            text = done.stdout + done.stderr
            assert done.returncode == code, text
            assert done.stderr.count("error: ") == 1, text
            for part in parts:
                assert part in text, f"{part!r} is not in:\n{text}"
    assert "mpirun -n 4" in program.run("predict", "runs/small", "test.idx", ranks=3).stderr
    assert not list(program.folder.rglob("predictions.*"))


def test_a_pattern_that_freezes_nothing_is_an_error_with_the_nearest_name(program, pictures):
    done = program.run("train", program.deck(TUNE), "--set", "optimizer.freeze=block.*", ranks=4)
    assert done.returncode == 2
    assert 'optimizer.freeze = "block.*"' in done.stderr and '"blocks.0.' in done.stderr
