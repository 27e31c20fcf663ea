"""tools/to_tensorboard.py: its files, taken apart by a reader that knows the format only.

usage: to_tensorboard_test.py TOOLS
"""

import json
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(sys.argv[1]) / "to_tensorboard.py"


def crc32c(data):
    """Bit by bit, unlike the tool's table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def unmasked(value):
    value = (value - 0xA282EAD8) % 2**32
    return (value >> 17 | value << 15) % 2**32


def records(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        (check,) = struct.unpack("<I", data[8:12])
        assert unmasked(check) == crc32c(data[:8])
        body, (check,) = data[12 : 12 + length], struct.unpack(
            "<I", data[12 + length : 16 + length]
        )
        assert unmasked(check) == crc32c(body)
        yield body
        data = data[16 + length :]


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
        yield key >> 3, data[at : at + size]
        at += size


class ToTensorboard(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = Path(folder.name) / "night"
        self.run_folder.mkdir()

    def tool(self, *arguments):
        return subprocess.run(
            [sys.executable, TOOL, *map(str, arguments)], text=True, capture_output=True
        )

    def test_every_finite_number_is_there_under_its_step(self):
        names = ["learning_rate", "grad_norm", "loss_scale", "samples_per_second"]
        lines = [
            {
                "kind": "train",
                "step": step,
                "loss": None if step == 3 else 1.5 / step,
                "seconds": 2.0,
                "skipped": step == 3,
                **{name: 0.25 * step for name in names},
            }
            for step in [1, 2, 3, 300]
        ]
        lines.append(
            {"kind": "eval", "step": 300, "loss": 0.5, "top1": 0.75, "top5": 1.0, "samples": 8}
        )
        text = "".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tra'
        (self.run_folder / "metrics.jsonl").write_text(text)
        done = self.tool(self.run_folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        (file,) = (self.run_folder / "tensorboard").iterdir()
        self.assertIn("tfevents", file.name)
        seen, times = {}, []
        for number, body in enumerate(records(file.read_bytes())):
            parts = dict(fields(body))
            times.append(struct.unpack("<d", parts[1])[0])
            if number == 0:
                self.assertEqual(parts[3], b"brain.Event:2")
                continue
            for _, value in fields(parts[5]):
                inner = dict(fields(value))
                seen[inner[1].decode(), parts[2]] = struct.unpack("<f", inner[2])[0]
        self.assertEqual(seen["train/loss", 300], struct.unpack("<f", struct.pack("<f", 0.005))[0])
        self.assertNotIn(("train/loss", 3), seen)
        self.assertEqual(seen["train/grad_norm", 3], 0.75)
        self.assertEqual(seen["eval/top1", 300], 0.75)
        self.assertEqual(len(seen), 4 * 6 - 1 + 3)
        self.assertEqual(times, sorted(times))
        self.assertAlmostEqual(
            times[-1], (self.run_folder / "metrics.jsonl").stat().st_mtime, places=3
        )

    def test_a_folder_without_a_run_is_refused(self):
        done = self.tool(self.run_folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("metrics.jsonl", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
