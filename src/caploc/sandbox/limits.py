"""How much one program may use."""

from dataclasses import dataclass

from caploc.errors import BadOption

MIB = 2**20
# Below this Python itself does not start.
LEAST_MEMORY = 64 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use; its test code may use as much once more.

    Attributes:
        cpu_seconds: processor time, rounded up to whole seconds.
        wall_seconds: time by the clock, program and tests together.
        memory_bytes: address space.
        output_bytes: what program and tests may print, together.
        processes: processes and threads at once.
        file_bytes: size of its temporary directory, and of any one file in it.

    Raises:
        BadOption: if a limit is not positive, or leaves Python no memory.
    """

    cpu_seconds: float = 10.0
    wall_seconds: float = 30.0
    memory_bytes: int = 512 * MIB
    output_bytes: int = 4 * MIB
    processes: int = 32
    file_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise BadOption(f"{name} must be positive; got {value}.")
        if self.memory_bytes < LEAST_MEMORY:
            raise BadOption(
                f"memory_bytes must be {LEAST_MEMORY} or more, or Python does not start; "
                f"got {self.memory_bytes}."
            )
