"""Checks for silent corruption leave a sound run as it is."""

import pytest

from conftest import DECK, losses

LAYOUTS = {
    "data": [],
    "tensor": ["parallel.data=1", "parallel.tensor=2", "precision.type=f16"],
    "copies": ["optimizer.zero=0", "parallel.schedule=breadth_first", "parallel.chunks=2"],
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_a_checked_run_has_the_losses_of_an_unchecked_one(program, layout):
    changes = [part for text in LAYOUTS[layout] for part in ("--set", text)]
    deck = program.deck(DECK)
    program.good("train", deck, *changes, ranks=4)
    checks = ["--set", "run.check_every_steps=1", "--set", "run.name=checked"]
    program.good("train", deck, *changes, *checks, ranks=4)
    runs = program.folder / "runs"
    assert losses(runs / "checked") == losses(runs / "small")
