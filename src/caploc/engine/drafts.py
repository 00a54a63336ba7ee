"""What an answer will probably say: drafts, and how far it pays to check them.

A draft is checked by reading it in one pass. What the model would have said anyway is kept, up to
and including its first disagreement, so that a draft never changes an answer. Checking costs a
token's share of a pass, whether it was right or not; saying a token costs a step.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PROBES = 16  # where drafts do not pay, one in so many is still made, to see if they do now
REMEMBERED = 256  # drafts; what was seen before them counts half, then a quarter, and so on
FIRST, GROWTH = 8, 3  # a first draft's tokens; while all are right, drafts grow by this factor
UNKNOWN_PRICE = 0.5  # of checking a token, in tokens said, before both have been timed
MOST = 64  # different answers kept for a prompt; later ones only count where they are the same
MOST_PLACES = 300_000  # in the trees of all prompts: a hundred megabytes


@dataclass(eq=False, slots=True)
class _Said:
    times: int = 0
    next: "dict[int, _Said]" = field(default_factory=dict)


class AnswerTree:
    """What was answered to one prompt, under any mask, as a tree of tokens.

    `kept` counts different answers, `size` the tree's places, its root among them.
    """

    def __init__(self, grown: Callable[[int], None] = lambda by: None) -> None:
        """Begin with nothing; `grown` is told by how many places the tree has grown."""
        self.root, self.kept, self.size, self.grown = _Said(), 0, 1, grown
        grown(1)

    def add(self, tokens: Sequence[int]) -> None:
        """Remember an answer."""
        place, before = self.root, self.size
        full = self.kept >= MOST
        for token in tokens:
            if token not in place.next:
                if full:
                    return
                place.next[token] = _Said()
                self.size += 1
            place = place.next[token]
            place.times += 1
        self.kept += self.size > before
        self.grown(self.size - before)

    def draft(self, said: Sequence[int], longest: int) -> list[int]:
        """Return how most answers went on that began as this one did, at most `longest` tokens."""
        place = self.root
        for token in said:
            if token not in place.next:
                return []
            place = place.next[token]
        tokens: list[int] = []
        while place.next and len(tokens) < longest:
            token = max(place.next, key=lambda token: place.next[token].times)
            tokens.append(token)
            place = place.next[token]
        return tokens


class AnswerCache:
    """Answer trees by prompt; those asked for longest ago are forgotten first.

    A prompt is known by its hash, which is quick; where two clash, a draft is wrong, and no answer.
    """

    def __init__(self, most: int = MOST_PLACES) -> None:
        """Keep so many places of trees; more only when an answer has just come."""
        self.most, self.held = most, 0
        self.trees: OrderedDict[int, AnswerTree] = OrderedDict()

    def of(self, prompt: int) -> AnswerTree:
        """Return what was answered to the prompt of this hash so far."""
        found = self.trees.get(prompt)
        if found is None:
            found = self.trees[prompt] = AnswerTree(self._grow)
        self.trees.move_to_end(prompt)
        while self.held > self.most and len(self.trees) > 1:
            _, oldest = self.trees.popitem(last=False)
            self.held -= oldest.size
        return found

    def _grow(self, places: int) -> None:
        self.held += places


class DraftOdds:
    """How far drafts hold, and what it costs to find out.

    With S(i) the share of drafts that are right at least up to token i, drafting token i saves a
    step's share S(i) times and costs its share of a pass each time: a draft is worth its tokens as
    far as S(i) is at least the ratio of the two prices. S comes from how often token i was right
    when it was reached (Kaplan and Meier 1958), so that short drafts teach about short ones only.
    """

    def __init__(self, longest: int) -> None:
        """Begin with nothing seen; drafts have at most `longest` tokens."""
        self.longest = longest
        self.reached: list[float] = []
        self.right: list[float] = []
        self.checking = self.saying = 0.0  # seconds for a token drafted, and for one said in a step
        self.asked = 0

    def saw(self, drafted: int, accepted: int) -> None:
        """Learn from one row: of `drafted` tokens the first `accepted` were right."""
        for place in range(min(accepted + 1, drafted)):
            if place == len(self.reached):
                self.reached.append(0.0)
                self.right.append(0.0)
            if self.reached[place] >= REMEMBERED:
                self.reached[place] /= 2
                self.right[place] /= 2
            self.reached[place] += 1
            self.right[place] += place < accepted

    def price(self) -> float:
        """Return what checking a token costs, in tokens said."""
        if not self.checking or not self.saying:
            return UNKNOWN_PRICE
        return min(self.checking / self.saying, 1.0)

    def length(self) -> int:
        """Choose how many tokens are worth drafting."""
        self.asked += 1
        holds, price = 1.0, self.price()
        for place, (reached, right) in enumerate(zip(self.reached, self.right, strict=True)):
            holds *= (right + 1) / (reached + 1)
            if holds < price:
                return min(place or int(self.asked % PROBES == 0), self.longest)
        return min(self.longest, GROWTH * len(self.reached) + FIRST)


def running_mean(before: float, seconds: float, share: float = 0.1) -> float:
    """Add to a running mean of seconds, which starts at the first."""
    return seconds if not before else before + share * (seconds - before)


@dataclass(frozen=True)
class Drafting:
    """What drafts are made from: answers by prompt, and the odds of first and of later drafts."""

    answers: Callable[[int], AnswerTree]
    first: DraftOdds
    later: DraftOdds
