"""Weights out of a run and into another: safetensors read and written by Python alone."""

import json
import struct

import h5py
import numpy as np
import pytest

from conftest import DECK, losses

TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
TOKEN = DECK.replace("patch = 4", 'patch = 4\npool = "token"')


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        begin, data = len(data), data + values.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [begin, len(data)],
        }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def stored(run, group="model"):
    with h5py.File(run / "checkpoints" / "latest" / "index.h5") as file:
        return {name: values[()] for name, values in file[group].items()}


def huggingface_names(tensors):
    """What HuggingFace's ViTForImageClassification calls them."""
    renamed = {}
    for name, values in tensors.items():
        if name.startswith("head."):
            renamed[name.replace("head.", "classifier.")] = values
            continue
        if ".attn.qkv." in name:
            for part, third in zip(("query", "key", "value"), np.split(values, 3)):
                one = name.replace(".attn.qkv.", f".attention.attention.{part}.")
                renamed["vit." + one.replace("blocks.", "encoder.layer.")] = third
            continue
        for old, new in (
            ("blocks.", "encoder.layer."),
            (".norm1.", ".layernorm_before."),
            (".norm2.", ".layernorm_after."),
            (".attn.proj.", ".attention.output.dense."),
            (".mlp.fc1.", ".intermediate.dense."),
            (".mlp.fc2.", ".output.dense."),
            ("cls_token", "embeddings.cls_token"),
            ("pos_embed", "embeddings.position_embeddings"),
            ("patch_embed.proj.", "embeddings.patch_embeddings.projection."),
        ):
            name = name.replace(old, new)
        if name.startswith("norm."):
            name = "layer" + name
        renamed["vit." + name] = values
    return renamed


@pytest.fixture(name="trained")
def trained_run(program):
    """A finished run over four ranks."""
    program.good("train", program.deck(TOKEN), ranks=4)
    return program.folder / "runs/small"


def test_an_export_holds_the_checkpoints_weights(program, trained):
    want = stored(trained)
    file = program.folder / "model.safetensors"
    for kind, convert in {
        "f32": lambda x: x,
        "f16": lambda x: x.astype(np.float16),
        "bf16": lambda x: ((x.view(np.uint32) + 0x7FFF + (x.view(np.uint32) >> 16 & 1)) >> 16),
    }.items():
        program.good("export", "runs/small", file, "--type", kind)
        got, metadata = read_safetensors(file)
        assert set(got) == set(want)
        for name, values in want.items():
            np.testing.assert_array_equal(got[name], convert(values), name)
    assert metadata["format"] == "pt" and metadata["step"] == "12"
    assert metadata["pool"] == "token" and metadata["heads"] == "4" and metadata["grid"] == "3x3"
    assert [path.name for path in program.folder.glob("model*")] == ["model.safetensors"]


def test_an_exported_model_imports_to_the_same_and_trains_on(program, trained):
    file = program.folder / "model.safetensors"
    deck = program.folder / "deck.toml"
    program.good("export", trained / "checkpoints/latest", file)
    again = ("--set", "run.name=again")
    out = program.good("import", file, deck, *again)
    assert "step_00000000" in out
    run = program.folder / "runs/again"
    assert all(not values.any() for values in stored(run, "optimizer/v").values())
    assert "0 differ" in program.good("diff", "runs/small", "runs/again")
    moments = program.run("diff", "runs/small", "runs/again", "--moments")
    assert moments.returncode == 4 and "v/head.bias" in moments.stdout
    program.good("verify", "runs/again")
    # As it was trained: the same test loss, and training goes on from it.
    evaluated = [
        program.good("eval", deck, *extra, ranks=4).split("test loss")[1].split(",")[0]
        for extra in ((), again)
    ]
    assert evaluated[0] == evaluated[1]
    assert "continuing from" in program.good("train", deck, *again, ranks=4)
    assert sorted(losses(run)) == list(range(1, 13))
    assert losses(run)[1] != losses(trained)[1]
    # A run that has begun is left alone.
    refused = program.run("import", file, deck, *again)
    assert refused.returncode == 2 and "--fresh" in refused.stderr
    program.good("import", file, deck, *again, "--fresh")
    assert (program.folder / "runs/again.2/checkpoints/step_00000000").is_dir()


def test_huggingfaces_names_import_to_the_same_weights(program, trained):
    file = program.folder / "hf.safetensors"
    write_safetensors(file, huggingface_names(stored(trained)))
    deck = program.folder / "deck.toml"
    program.good("import", file, deck, "--set", "run.name=hf")
    out = program.good("diff", "runs/small", "runs/hf")
    assert "0 differ" in out and "cannot" not in out
    # Other pictures and other classes: what fits is kept.
    changed = ("run.name=fine", "model.image=20", "model.classes=3")
    out = program.good(
        "import", file, deck, *(word for key in changed for word in ("--set", key))
    )
    assert "from 3 x 3 to 5 x 5" in out and "new, for 3 classes" in out
    different = program.run("diff", "runs/small", "runs/fine")
    assert different.returncode == 4
    assert different.stdout.count(" in A, ") == 3 and " 0 differ" in different.stdout


def test_files_that_do_not_fit_leave_no_run(program):
    deck = program.deck(TOKEN)
    file = program.folder / "bad.safetensors"
    write_safetensors(file, {"cls_token": np.zeros((1, 1, 32)), "extra": np.zeros(3)})
    for damage in (lambda data: data, lambda data: data[:-4], lambda data: data[:40]):
        file.write_bytes(damage(file.read_bytes()))
        refused = program.run("import", file, deck)
        assert refused.returncode == 4, refused.stderr
        assert refused.stderr.count("error:") == 1 and "bad.safetensors" in refused.stderr
        assert not (program.folder / "runs").exists()


def model_of(run):
    with h5py.File(run / "checkpoints" / "latest" / "index.h5") as file:
        return {name: data[:] for name, data in file["model"].items()}, dict(file.attrs)


@pytest.mark.parametrize("source", ["checkpoint", "safetensors"])
def test_a_run_begins_with_the_weights_that_init_names_on_any_mesh(program, source):
    program.good("train", program.deck(), ranks=4)
    teacher = program.folder / "runs" / "small"
    taken = teacher
    if source == "safetensors":
        taken = program.folder / "model.safetensors"
        program.good("export", teacher, taken)
    weights, _ = model_of(teacher)
    # With a learning rate of 0 the weights stay what they began as.
    begin = ["--set", f"model.init={taken}", "--set", "optimizer.lr=0", "--set", "run.steps=1"]
    meshes = {
        "one": (1, ["parallel.pipeline=1", "parallel.data=1", "model.classes=7"]),
        "tp": (4, ["parallel.pipeline=2", "parallel.data=1", "parallel.tensor=2"]),
    }
    for name, (ranks, changes) in meshes.items():
        more = [word for change in changes for word in ("--set", change)]
        more += ["--set", f"run.name={name}"]
        out = program.good("train", program.deck(), *begin, *more, ranks=ranks)
        got, attributes = model_of(program.folder / "runs" / name)
        assert attributes["step"] == 1 and attributes["samples"] == 16
        assert "model.init: weights of" in out
        for tensor, values in weights.items():
            if name == "one" and tensor.startswith("head."):
                assert "head: new, for 7 classes: 10 in the file" in out
                assert got[tensor].shape[0] == 7
            else:
                np.testing.assert_array_equal(got[tensor], values, err_msg=f"{name} {tensor}")


def test_init_refuses_what_is_damaged_missing_or_of_another_model(program):
    program.good("train", program.deck(), ranks=4)
    run = program.folder / "runs" / "small"

    def refused(init, *more):
        done = program.run(
            "train",
            program.deck(),
            "--set",
            f"model.init={init}",
            "--set",
            "run.name=next",
            *more,
            ranks=4,
        )
        assert done.returncode == 4, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "nowhere.safetensors" in refused(program.folder / "nowhere.safetensors")
    assert "blocks.0.mlp.fc1.weight: (128, 32) there, (64, 32) here" in refused(
        run, "--set", "model.mlp=64"
    )
    shard = run / "checkpoints" / "step_00000012" / "shard_00002.h5"
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "shard_00002.h5" in refused(run)
