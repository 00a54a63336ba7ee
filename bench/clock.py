"""Seconds by the wall clock and of this process's CPU time, which other processes do not touch."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long something took."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        """One after the other."""
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __mul__(self, times: float) -> "Seconds":
        """The same so many times."""
        return Seconds(self.wall * times, self.cpu * times)


class Stopwatch:
    """Started when made."""

    def __init__(self) -> None:
        """Start."""
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        """Seconds since the start."""
        return Seconds(time.perf_counter() - self.wall, time.process_time() - self.cpu)
