"""A screen and a shortlist of a chosen size, brought together."""

import numpy as np
from driven import answered, drive, inside, problem

from caploc import designs
from caploc.search.conclusion import Conclusion
from caploc.search.plan import intact_plan
from caploc.search.screen import Screen
from caploc.search.state import Shortlist
from worlds.simulate import World

WORLD = World.planted(40, 4, drop=0.35, seed=1)


def looked(world=WORLD, rows=1200, checked=50, struck=(), top=4, seed=0, ask=World.outcomes):
    """A screen of so many rows and its first heads alone on so many examples."""
    asked, answer = problem(world.heads, top=top), inside(world, ask=ask)
    intact = answered(intact_plan(asked, asked.examples), answer).by_example()
    screen = Screen(asked, intact, designs.generator(seed))
    screen.take(answered(screen.next_rows(rows), answer))
    heads = np.argsort(screen.posterior().mean)[: top + 3].tolist() if checked else []
    shortlist = Shortlist(asked, heads, designs.generator(seed + 1))
    drive(shortlist.more(heads, checked), answer)
    return Conclusion(screen, shortlist, struck)
