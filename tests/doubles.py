"""Stand-ins that several tests hand to the code."""

from caploc.progress import Silent


class Watcher(Silent):
    """Progress that notes all it is told; it stops a run as Ctrl-C would.

    `most` counts measured rows, those that were not stored before; `stages` those that may begin.
    """

    def __init__(self, most=None, stages=None):
        self.most, self.most_stages = most, stages
        self.rows = self.measured = 0
        self.expected, self.stages, self.told = [], [], []

    def expect(self, rows):
        self.expected.append((self.rows, rows))

    def start(self, what, rows):
        if len(self.stages) == self.most_stages:
            raise KeyboardInterrupt
        self.stages.append(what)

    def advance(self, rows, tokens):
        self.rows += rows
        self.measured += rows if tokens else 0
        if self.most is not None and self.measured >= self.most:
            raise KeyboardInterrupt

    def tell(self, text):
        self.told.append(text)
