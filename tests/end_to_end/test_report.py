"""A traced run from its deck to trace.h5, the report, Perfetto's file and the page, as a user
meets them: real mpirun, plain h5py, Python's json, headless Chromium."""

import json
import re
import shutil
import struct
import subprocess
import time
import zlib

import h5py
import numpy as np
import pytest

from conftest import DECK, kill_everything

TRACED = [
    "--set",
    "model.dim=128",
    "--set",
    "model.image=24",
    "--set",
    "eval.every_steps=6",
    "--set",
    "trace.steps=5:9",
]
DEVICE_LANES = 7  # lanes above are the host's own thread
BLUE, ORANGE = (0x3B, 0x82, 0xD6), (0xE0, 0x8A, 0x2C)  # forward and backward on the page


def names_of(file, table="names"):
    return [name.decode() for name in file[table]["name"]]


def events_of(file):
    return [file[rank]["events"][:] for rank in sorted(file) if rank.startswith("rank_")]


def pick(events, names, name):
    return events[events["name"] == names.index(name)]


def covered_share(events, names):
    """Of the time from the first instruction to the last step's end, by any lane or by work of
    the host's own thread."""
    steps = pick(events, names, "step")
    begin = max(steps["begin_ns"].min(), events[events["lane"] < DEVICE_LANES]["begin_ns"].min())
    end = steps["end_ns"].max()
    waits = [names.index("step"), names.index("step_wait")]
    covered, reached = 0, begin
    for event in np.sort(events[~np.isin(events["name"], waits)], order="begin_ns"):
        last = min(event["end_ns"], end)
        covered += max(0, last - max(event["begin_ns"], reached))
        reached = max(reached, last)
    return covered / (end - begin)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    from conftest import Program

    program = Program(tmp_path_factory.mktemp("traced"))
    program.good("train", program.deck(), *TRACED, ranks=4)
    return program


def test_trace_holds_every_instruction_on_one_clock(traced):
    with h5py.File(traced.folder / "runs/small/trace.h5") as file:
        assert file.attrs["format_version"] == 1
        assert (file.attrs["pipeline"], file.attrs["data"], file.attrs["tensor"]) == (2, 2, 1)
        names, ranks = names_of(file), events_of(file)
        assert (
            names_of(file, "lanes")
            == "compute pipe_in pipe_out dp input h2d d2h host disk main".split()
        )
        assert len(ranks) == 4
        for rank, events in enumerate(ranks):
            assert (events["end_ns"] >= events["begin_ns"]).all()
            assert sorted(set(events["step"])) == [5, 6, 7, 8]
            # 16 samples on 2 data ranks in micro-batches of 2, one chunk a rank
            for name in ["forward", "backward"]:
                found = pick(events, names, name)
                assert len(found) == 4 * 4, name
                assert (found["flops"] > 0).all()
            assert len(pick(events, names, "norm")) == 4
            assert len(pick(events, names, "evaluate")) == 1
            assert covered_share(events, names) > 0.9, f"rank {rank}"
            memory = file[f"rank_{rank:05}/memory"][:]
            assert memory["bytes"].sum() > 0
        assert len(file["samples"]) == 16 and (file["samples"]["resident_bytes"] > 1e6).all()
        # Rank = pp * 2 + dp. A transfer's chunk is the one that the activation enters: 1.
        for sender, receiver, kind in [(0, 2, "activation"), (2, 0, "gradient")] * 2:
            sends = pick(ranks[sender], names, f"send_{kind}")
            receives = pick(ranks[receiver], names, f"receive_{kind}")
            assert len(sends) == len(receives) == 16
            key = ["step", "chunk", "micro"]
            sends, receives = np.sort(sends, order=key), np.sort(receives, order=key)
            assert (sends[key] == receives[key]).all()
            assert (sends["bytes"] == receives["bytes"]).all() and (sends["bytes"] > 0).all()
            skew = file["rank_00000"].attrs["clock_skew_ns"]
            assert skew == 0, "the ranks of this machine share a clock"
            assert (sends["begin_ns"] <= receives["end_ns"]).all()


def test_report_in_the_terminal_and_for_perfetto(traced):
    out = traced.good("report", "runs/small", "--perfetto", "trace.json")
    for part in ["12 of 12", "top-1", "step_00000012", "Recorded steps 5 to 8", "bubble", "Advice"]:
        assert part in out, out
    shown = json.loads((traced.folder / "trace.json").read_text())
    events = shown["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f", "C"}
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["name"], str)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["args"]["step"] in range(5, 9)
    with h5py.File(traced.folder / "runs/small/trace.h5") as file:
        recorded = sum(len(events) for events in events_of(file))
    assert sum(event["ph"] == "X" for event in events) == recorded
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) > 0
    assert all(starts[number] <= ends[number] for number in starts)


def test_report_refuses_what_it_cannot_do(traced):
    bad = traced.run("report", "runs")
    assert bad.returncode == 2 and "deck.toml" in bad.stderr + bad.stdout
    bad = traced.run("report", "runs/small", "--follow", "--html", "x.html")
    assert bad.returncode == 2 and "--follow" in bad.stderr + bad.stdout
    followed = traced.good("report", "runs/small", "--follow")
    assert "12 of 12" in followed


def test_trace_opens_after_kill_9(program):
    deck = program.deck()
    endless = ["--set", "run.steps=100000", "--set", "trace.steps=2:100000"]
    job = program.start("train", deck, *TRACED[:4], *endless, ranks=4)
    trace = program.folder / "runs/small/trace.h5"
    steps = 0
    end = time.monotonic() + 60
    while steps < 10 and time.monotonic() < end:
        time.sleep(0.05)
        if trace.exists():
            with h5py.File(trace) as file:
                steps = len(set(events_of(file)[0]["step"]))
    kill_everything(job)
    with h5py.File(trace) as file:
        names, ranks = names_of(file), events_of(file)
        assert steps >= 10
        for events in ranks:
            # Whole steps only, without a gap.
            found = sorted(set(events["step"]))
            assert found == list(range(2, 2 + len(found)))
            assert len(pick(events, names, "forward")) == 4 * len(found)


# --- The page


def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    return found


def browse(folder, page, *options):
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'chromium'}", "--virtual-time-budget=15000"]
    command += ["--enable-logging=stderr", *options, f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    faults = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not faults, faults
    return done.stdout


def pixels(path):
    """(height, width, 3) of a PNG with 8 bits a channel, filters undone. A pixel needs those to its
    left and above, so a diagonal of the picture is undone at once."""
    data = path.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and kind in (2, 6)
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    channels = 3 if kind == 2 else 4
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, -1)
    filters = rows[:, 0].astype(int)[:, None]
    coded = rows[:, 1:].reshape(height, width, channels).astype(int)
    image = np.zeros((height + 1, width + 1, channels), int)
    for diagonal in range(width + height - 1):
        y = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        x = diagonal - y
        left, up, corner = image[y + 1, x], image[y, x + 1], image[y, x]
        near = left + up - corner
        a, b, c = abs(near - left), abs(near - up), abs(near - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        guess = np.choose(filters[y], [np.zeros_like(left), left, up, (left + up) // 2, paeth])
        image[y + 1, x + 1] = (coded[y, x] + guess) % 256
    return image[1:, 1:, :3]


def count(image, color):
    return int((abs(image - color).sum(axis=2) <= 6).sum())


@pytest.fixture(scope="module")
def page(traced):
    chromium()
    traced.good("report", "runs/small", "--html", "page.html")
    return traced.folder / "page.html"


def test_page_is_built_without_console_errors(traced, page):
    dom = browse(traced.folder, page, "--dump-dom", "--window-size=1280,900")
    assert 'data-ready="1"' in dom
    assert dom.count('class="curve"') >= 6
    assert re.search(r'<canvas[^>]*data-drawn="[1-9]', dom)
    for part in ["training loss", "test accuracy", "throughput", "Lanes", "Operations", "Advice"]:
        assert part in dom, part
    assert page.stat().st_size < 1_000_000


# A corner of the picture that says whether something sticks out to the right, so that a phone would
# have to scroll sideways.
PROBE = """<script>
const probe = document.createElement('div');
document.body.append(probe);
const look = () => {
  const page = document.documentElement;
  const color = page.scrollWidth > page.clientWidth ? 'rgb(255,0,255)' : 'rgb(0,255,255)';
  probe.style = `position:fixed;left:0;top:0;width:6px;height:6px;z-index:9;background:${color}`;
};
addEventListener('resize', look);
look();
</script></body>"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_shows_curves_and_lanes(traced, page, width, theme):
    shot = traced.folder / f"{width}_{theme}.png"
    probed = traced.folder / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE))
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    height = 2600 if width == 1280 else 3400
    browse(traced.folder, probed, f"--screenshot={shot}", f"--window-size={width},{height}", *dark)
    image = pixels(shot)
    assert image.shape[1] == width
    assert list(image[2, 2]) == [0, 255, 255], "something sticks out to the right"
    corner = image[2, 10].mean()
    assert corner < 60 if theme == "dark" else corner > 200
    least = width // 4  # bars are as long as their work took on this machine, on a page so wide
    assert count(image, BLUE) > least and count(image, ORANGE) > least, "no lanes"
    accent = (0x69, 0xA9, 0xFF) if theme == "dark" else (0x1F, 0x6F, 0xD6)
    assert count(image, accent) > 500, "no curves"


# Looks for an event below the pointer, row by row, then zooms to one step.
TOUCH = """<script>
const canvas = document.querySelector('canvas'), box = canvas.getBoundingClientRect();
const found = new Set();
for (let y = 2; y < box.height; y += 4) {
  for (let x = 110; x < box.width; x += 3) {
    canvas.dispatchEvent(new PointerEvent('pointermove',
      { clientX: box.left + x, clientY: box.top + y, pointerId: 1 }));
    const tip = document.getElementById('tip');
    if (tip.style.display === 'block') found.add(tip.firstChild.textContent);
  }
}
const before = Number(canvas.dataset.drawn);
const steps = document.querySelector('select');
steps.value = '6';
steps.dispatchEvent(new Event('change'));
requestAnimationFrame(() => requestAnimationFrame(() => {
  document.title = [...found].sort().join(' ') + ' | ' + (Number(canvas.dataset.drawn) - before);
}));
</script></body>"""


def test_pointer_names_events_and_a_step_is_zoomed_to(traced, page):
    touched = traced.folder / "touched.html"
    touched.write_text(page.read_text().replace("</body>", TOUCH))
    dom = browse(traced.folder, touched, "--dump-dom", "--window-size=1280,900")
    names, drawn = re.search(r"<title>(.*) \| ([0-9]+)</title>", dom).groups()
    assert {"forward", "backward", "receive_activation", "norm", "evaluate"} <= set(names.split())
    assert int(drawn) >= 1


def test_page_compares_two_runs(traced, page):
    traced.good("train", traced.deck(), "--fresh", "--set", "batch.micro=4", *TRACED, ranks=4)
    both = traced.folder / "both.html"
    out = traced.good("report", "runs/small", "runs/small.2", "--html", both)
    assert "change" in out
    dom = browse(traced.folder, both, "--dump-dom", "--window-size=1280,900")
    assert "Comparison" in dom and dom.count("<canvas") == 2
