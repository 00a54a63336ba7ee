"""The pages of results say what is stored, and nothing else."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import claims  # noqa: E402
import results  # noqa: E402


def test_the_tables_are_those_of_the_stored_results(tmp_path):
    stored = results.finished(tmp_path)
    written = results.PAGE.read_text()
    assert "\n".join(results.tables(stored)) in written, "run python scripts/results.py"
    page = claims.PAGE.read_text()
    assert claims.fill(page, list(stored.values())) == page, "run python scripts/claims.py"


def test_pairs_by_chance_are_those_of_a_closed_form():
    grid = claims.HeadGrid((6, 6), (3, 3))
    sets = [(0, 1, 2), (0, 1, 7)]
    inside, _ = claims.pairs_by_chance(grid, sets, by_layer=True)
    anywhere, _ = claims.pairs_by_chance(grid, sets, by_layer=False)
    # four pairs of a layer, each in one of its two groups of three by 2/5; any pair by 2/11
    assert abs(inside - 4 * 2 / 5) < 0.03
    assert abs(anywhere - 6 * 2 / 11) < 0.03


def test_no_head_is_said_to_do_more_than_the_score_can_change(tmp_path):
    for name, result in results.finished(tmp_path).items():
        intact = result.intact.score
        assert intact is not None
        for head in result.heads:
            if head.effect is not None:
                assert -intact - 1e-9 <= head.effect <= 1 - intact + 1e-9, f"{name}: {head.head}"
