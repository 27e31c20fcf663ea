"""`voltapile plan` and `ranks`: what a user looks at before a job, without MPI or a GPU."""

import pytest

from conftest import ROOT


@pytest.mark.parametrize(
    "name,ranks",
    [("vit32b_synthetic_4xv100", 4), ("vit175b_synthetic_512gpu", 512), ("quickstart", 4)],
)
def test_shipped_decks_are_planned(program, name, ranks):
    deck = ROOT / "input_decks" / f"{name}.toml"
    assert program.good("ranks", deck).strip() == str(ranks)
    out = program.good("plan", deck)
    for word in ("mesh", "chunk", "bubble", "parameters", "memory", "schedule"):
        assert word in out.lower(), word
    # Messages that begin with the deck's path are as long as that path.
    assert max(len(line) for line in out.splitlines() if str(deck) not in line) <= 100


def test_the_headline_model_has_32_billion_parameters(program):
    out = program.good("plan", ROOT / "input_decks" / "vit32b_synthetic_4xv100.toml")
    assert "32.4 B" in out or "32.2 B" in out or "32.3 B" in out, out


def test_help_teaches(program):
    out = program.good("--help")
    for word in ("plan", "train", "eval", "ranks", "verify", "mpirun", "Exit codes", "75"):
        assert word in out
    assert program.good("--version").strip()


def test_the_readme_shows_what_plan_prints(program):
    page = (ROOT / "README.md").read_text()
    shown = page.split("$ voltapile plan input_decks/quickstart.toml\n")[1].split("```")[0]
    printed = program.good("plan", ROOT / "input_decks" / "quickstart.toml").splitlines()
    # The first line ends with the deck's path, which depends on where it is called.
    for line in shown.splitlines()[1:]:
        if line.strip() not in ("", "..."):
            assert line in printed, line
