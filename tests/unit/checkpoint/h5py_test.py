"""Checkpoints through plain h5py, and the tools for it.

usage: h5py_test.py WRITE_SAMPLE TOOLS
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import h5py
import numpy as np

WRITE_SAMPLE, TOOLS = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
STATES = {"model": 0, "optimizer/master": 0, "optimizer/m": 1, "optimizer/v": 2}


def write(folder, mesh=(1, 2, 2), seed=1, steps=(3,)):
    """Writes checkpoints; returns {name: (id, shape)}."""
    command = [WRITE_SAMPLE, folder, *mesh, seed, *steps]
    lines = subprocess.run([str(word) for word in command], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    words = [line.split() for line in lines]
    return {w[1]: (int(w[0]), tuple(int(extent) for extent in w[2:])) for w in words}


def expected(number, shape, state, step):
    """What sample.hpp's value() puts in a tensor."""
    index = np.arange(np.prod(shape), dtype=np.uint64)
    salt = np.uint64(number * 7919 + state * 104729 + step * 1299709)
    values = (index * np.uint64(2654435761) + salt) % np.uint64(16777213)
    return values.astype(np.float32).reshape(shape)


def tool(name, *words):
    return subprocess.run([sys.executable, str(TOOLS / name), *map(str, words)],
                          capture_output=True, text=True)


class WithFolder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="vp_h5py_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir("/")


class H5py(WithFolder):
    def check(self, checkpoint, tensors, step=3):
        with h5py.File(Path(checkpoint) / "index.h5", "r") as file:
            for group, state in STATES.items():
                self.assertEqual(set(file[group]), set(tensors))
                for name, (number, shape) in tensors.items():
                    np.testing.assert_array_equal(file[group][name][:],
                                                  expected(number, shape, state, step), name)

    def test_whole_tensors_whatever_the_mesh(self):
        for mesh in ((1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 2, 2), (1, 7, 2)):
            with self.subTest(mesh=mesh):
                at = self.folder / "_".join(map(str, mesh))
                self.check(at / "step_00000003", write(at, mesh))

    def test_parts_of_a_tensor(self):
        tensors = write(self.folder, (1, 3, 2))
        number, shape = tensors["patch_embed.proj.weight"]
        with h5py.File(self.folder / "latest/index.h5", "r") as file:
            got = file["model/patch_embed.proj.weight"][3:20:4, 1, ::2]
        np.testing.assert_array_equal(got, expected(number, shape, 0, 3)[3:20:4, 1, ::2])

    def test_from_anywhere(self):
        tensors = write(self.folder / "a")
        self.check(self.folder / "a/latest", tensors)  # through a symlink, from "/"
        os.chdir(self.folder / "a/step_00000003")
        self.check(".", tensors)
        os.chdir(self.folder)
        self.check("a/latest", tensors)
        (self.folder / "link.h5").symlink_to("a/step_00000003/index.h5")
        with h5py.File("link.h5", "r") as file:
            self.assertFalse(np.isnan(file["model/head.weight"][:]).any())
        os.rename("a", "b")
        self.check(self.folder / "b/latest", tensors)
        shutil.copytree("b/latest", "c")
        shutil.rmtree("b")
        self.check("c", tensors)

    def test_another_checkpoint_in_the_working_directory_is_not_read(self):
        tensors = write(self.folder, steps=(3, 4))
        os.chdir(self.folder / "step_00000004")
        self.check(self.folder / "step_00000003", tensors, step=3)

    def test_attributes_and_shards(self):
        write(self.folder, (1, 2, 2))
        checkpoint = self.folder / "latest"
        with h5py.File(checkpoint / "index.h5", "r") as file:
            self.assertEqual(file.attrs["format_version"], 2)
            self.assertEqual(file.attrs["step"], 3)
            self.assertEqual(file.attrs["samples"], 96)
            self.assertEqual(file.attrs["seed"], 0xFEDCBA9876543210)
            self.assertEqual(file.attrs["loss_scale"], 65536.5)
            self.assertEqual(file.attrs["deck"], '[run]\nname = "sample"\n')
            shards = file["shards"][:]
        self.assertEqual([row["file"].decode() for row in shards],
                         [f"shard_{rank:05d}.h5" for rank in range(4)])
        for row in shards:
            self.assertEqual(row["bytes"], (checkpoint / row["file"].decode()).stat().st_size)
            self.assertEqual(len(row["digest"]), 32)

    def test_a_missing_shard_reads_as_nan(self):
        write(self.folder, (1, 1, 2))
        (self.folder / "step_00000003/shard_00001.h5").unlink()
        with h5py.File(self.folder / "latest/index.h5", "r") as file:
            rows = file["model/blocks.0.mlp.fc1.weight"][:]
        self.assertFalse(np.isnan(rows[:24]).any())
        self.assertTrue(np.isnan(rows[24:]).all())

    def test_the_index_starts_with_text(self):
        write(self.folder)
        first = (self.folder / "latest/index.h5").read_bytes()[:512].rstrip(b"\0").decode()
        self.assertIn("voltapile checkpoint index", first)
        self.assertIn("xxh3-128", first)

    def test_digests_are_those_of_xxhsum(self):
        if shutil.which("xxhsum") is None:
            self.skipTest("xxhsum is not installed")
        write(self.folder)
        with h5py.File(self.folder / "latest/index.h5", "r") as file:
            row = file["shards"][1]
        said = subprocess.run(["xxhsum", "-H2", self.folder / "latest" / row["file"].decode()],
                              check=True, capture_output=True, text=True).stdout.split()[0]
        self.assertEqual(row["digest"].decode(), said)


class Tools(WithFolder):
    def test_read_tensor_lists_and_shows_and_saves(self):
        tensors = write(self.folder)
        listed = tool("read_tensor.py", self.folder / "latest")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        for name in tensors:
            self.assertIn(name, listed.stdout)
        shown = tool("read_tensor.py", self.folder / "latest", "head.bias")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("(10,)", shown.stdout)
        number, shape = tensors["blocks.0.attn.qkv.weight"]
        saved = tool("read_tensor.py", self.folder / "latest", "blocks.0.attn.qkv.weight",
                     "--state", "v", "--out", self.folder / "x.npy")
        self.assertEqual(saved.returncode, 0, saved.stderr)
        np.testing.assert_array_equal(np.load(self.folder / "x.npy"),
                                      expected(number, shape, 2, 3))

    def test_read_tensor_refuses_what_is_not_there(self):
        write(self.folder, (1, 1, 2))
        wrong = tool("read_tensor.py", self.folder / "latest", "head.bais")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("head.bias", wrong.stderr)  # the nearest name
        (self.folder / "step_00000003/shard_00001.h5").unlink()
        gap = tool("read_tensor.py", self.folder / "latest", "blocks.0.mlp.fc1.weight")
        self.assertEqual(gap.returncode, 1)
        self.assertIn("shard_00001.h5", gap.stderr)

    def test_compare_checkpoints(self):
        write(self.folder / "a", (1, 2, 2), seed=1, steps=(3, 4))
        write(self.folder / "b", (2, 1, 1), seed=2)
        same = tool("compare_checkpoints.py", self.folder / "a/step_00000003",
                    self.folder / "b/latest")
        self.assertEqual(same.returncode, 0, same.stdout + same.stderr)
        other = tool("compare_checkpoints.py", self.folder / "a/step_00000003",
                     self.folder / "a/step_00000004")
        self.assertEqual(other.returncode, 1)
        self.assertIn("head.weight", other.stdout)
        loose = tool("compare_checkpoints.py", self.folder / "a/step_00000003",
                     self.folder / "a/step_00000004", "--tolerance", "1e9")
        self.assertEqual(loose.returncode, 0, loose.stdout + loose.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
