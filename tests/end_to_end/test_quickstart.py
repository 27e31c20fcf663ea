"""The quickstart's deck on real pictures: Fashion-MNIST, four ranks, all of its epochs."""

import pytest

from conftest import FULL, ROOT, metrics

DECK = ROOT / "input_decks" / "quickstart.toml"


@pytest.mark.parametrize("seed", [1, 2, 3] if FULL else [1])
def test_the_quickstart_learns(program, seed):
    program.good("train", DECK, "--set", f"run.seed={seed}", ranks=4, timeout=3600)
    last = metrics(program.folder / "runs" / "quickstart", "eval")[-1]
    assert last["samples"] == 10000
    assert last["top1"] >= 0.88
    assert "good." in program.good("verify", program.folder / "runs" / "quickstart")
