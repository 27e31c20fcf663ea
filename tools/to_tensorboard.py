#!/usr/bin/env python3
"""Writes a run's metrics.jsonl as TensorBoard event files; may be used while the run goes on.

    to_tensorboard.py runs/quickstart                 into runs/quickstart/tensorboard
    to_tensorboard.py runs/a runs/b --out curves      into curves/a and curves/b
    tensorboard --logdir curves

Needs nothing but Python 3.8. Run it again to see more: it writes the files anew. Times are those of
the steps, counted back from the file's last change.
"""

import argparse
import json
import math
import struct
import sys
from pathlib import Path

TAGS = {
    "train": ["loss", "learning_rate", "grad_norm", "loss_scale", "samples_per_second", "seconds"],
    "eval": ["loss", "top1", "top5"],
}
FILE_NAME = "events.out.tfevents.0.voltapile"


def crc_table():
    """Castagnoli's polynomial, reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def masked_crc(data):
    """CRC-32C as TensorFlow's record files mask it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    """One record of the file: length, its checksum, the data, their checksum."""
    length = struct.pack("<Q", len(data))
    return (
        length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    )


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, data):
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(time, step, payload):
    """Event of tensorflow/core/util/event.proto: wall_time = 1, step = 2."""
    return record(struct.pack("<Bd", 0x09, time) + b"\x10" + varint(step) + payload)


def scalar(tag, value):
    """Summary.Value: tag = 1, simple_value = 2."""
    return field(1, field(1, tag.encode()) + struct.pack("<Bf", 0x15, value))


def read(path):
    """The whole lines of metrics.jsonl; a last one without an end is still being written."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]


def event_file(lines, last_change):
    """The bytes of an event file. Numbers that are not finite are null in the lines; left out."""
    time = last_change - sum(line["seconds"] or 0 for line in lines if line["kind"] == "train")
    out = [event(time, 0, field(3, b"brain.Event:2"))]
    for line in lines:
        kind = line["kind"]
        if kind not in TAGS:
            continue
        if kind == "train":
            time += line["seconds"] or 0
        values = [(tag, line[tag]) for tag in TAGS[kind] if line[tag] is not None]
        summary = b"".join(
            scalar(f"{kind}/{tag}", value) for tag, value in values if math.isfinite(value)
        )
        out.append(event(time, line["step"], field(5, summary)))
    return b"".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, help="folder with one folder for each run")
    options = parser.parse_args()
    for run in options.runs:
        path = run / "metrics.jsonl"
        if not path.is_file():
            sys.exit(f"{run}: no metrics.jsonl here; name a run folder such as runs/quickstart")
        folder = options.out / run.resolve().name if options.out else run / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        lines = read(path)
        (folder / FILE_NAME).write_bytes(event_file(lines, path.stat().st_mtime))
        print(f"{folder / FILE_NAME}: {len(lines)} lines of {path}")


if __name__ == "__main__":
    main()
