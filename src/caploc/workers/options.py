"""What is asked of workers: how many, where, and what each one gets."""

import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from caploc.errors import BadOption
from caploc.models.placement import SPREAD

CLUSTER = "ray"
ADDRESS = "RAY_ADDRESS"  # Ray's own variable
FOUND = "auto"  # the address of the cluster that this machine is a node of
DEVICES = ("auto", "cpu", "cuda", SPREAD)
LAST_PORT = 65_535
SECONDS = 5.0  # within which a cluster must take a connection


@dataclass(frozen=True)
class Workers:
    """How many workers answer, and where.

    With a `count` and no `address` they are processes of this machine. Without a count there are as
    many as the cluster holds at any time, at `address`, else at RAY_ADDRESS, else on this machine.
    `gpus` is a worker's number of GPUs where there are some (a half: two workers share one), `cpus`
    its number of CPU cores, which are its threads.
    """

    count: int | None = None
    address: str | None = None
    gpus: float = 1.0
    cpus: int | None = None

    @classmethod
    def parse(
        cls, text: str | None, address: str | None, gpus: float | None, cpus: int | None
    ) -> "Workers | None":
        """Read the options of the command line; None where rows are answered in this process.

        Raises:
            BadOption: if the number of workers is neither a number nor `ray`, or what belongs to
            workers is given without any.
        """
        if text is None:
            given = {
                "--ray-address": address,
                "--gpus-per-worker": gpus,
                "--cpus-per-worker": cpus,
            }
            for name, value in given.items():
                if value is not None:
                    raise BadOption(f"{name} {value} says how workers run; add --workers.")
            return None
        gpus = cls.gpus if gpus is None else gpus
        if text == CLUSTER:
            return cls(None, address, gpus, cpus)
        try:
            return cls(int(text), address, gpus, cpus)
        except ValueError:
            raise BadOption(
                f"--workers takes a number of processes on this machine, or ray; got {text!r}."
            ) from None

    @property
    def place(self) -> str | None:
        """The address of the cluster; None where one is started on this machine."""
        return self.address or (os.environ.get(ADDRESS) or None if self.count is None else None)

    def check(self, device: str = "auto") -> None:
        """Refuse what cannot be, before anything is started.

        Raises:
            BadOption: in one sentence.
        """
        self.check_numbers()
        if not find_spec("ray"):
            raise BadOption(
                "--workers needs Ray, which is not installed: pip install 'caploc[ray]'."
            )
        if device not in DEVICES and not device.startswith(f"{SPREAD}:"):
            raise BadOption(
                f"--device {device} with --workers: Ray gives every worker its own; choose "
                f"{', '.join(DEVICES)}."
            )
        if self.address and self.address.startswith("ray://"):
            raise BadOption(
                f"--ray-address {self.address}: run caploc on a node of the cluster and give the "
                "address of its head, HOST:6379, or auto."
            )
        if self.place is None:
            self.check_machine(device)
        elif self.place != FOUND:
            check_reachable(self.place)

    def check_numbers(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            BadOption: if one does.
        """
        if self.count is not None and self.count < 1:
            raise BadOption(f"--workers must be 1 or more, or ray; got {self.count}.")
        if self.cpus is not None and self.cpus < 1:
            raise BadOption(f"--cpus-per-worker must be 1 or more; got {self.cpus}.")
        # what Ray itself can reserve
        if not (0 < self.gpus < 1 or self.gpus >= 1 and self.gpus.is_integer()):
            raise BadOption(
                f"--gpus-per-worker is a whole number, or a share between 0 and 1; got {self.gpus}."
            )

    def check_machine(self, device: str) -> None:
        """Refuse more workers than this machine has GPUs or cores for.

        Raises:
            BadOption: if it has too few.
        """
        cards, cores, count = torch.cuda.device_count(), os.cpu_count() or 1, self.count or 1
        if device == "cuda" and not cards:
            raise BadOption("--device cuda: there is no GPU here; choose --device cpu.")
        if cards and device != "cpu":
            if count * self.gpus > cards:
                raise BadOption(
                    f"--workers {count} with {self.gpus:g} GPUs each: this machine has {cards}; "
                    "ask for fewer workers, a smaller --gpus-per-worker, or --device cpu."
                )
        elif count * (self.cpus or 1) > cores:
            raise BadOption(
                f"--workers {count} with {self.cpus or 1} cores each: this machine has {cores}; "
                "ask for fewer."
            )


def check_reachable(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes.

    Raises:
        BadOption: if it is no HOST:PORT, or does not answer.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= LAST_PORT):
        raise BadOption(
            f"--ray-address takes HOST:PORT of a cluster's head, or auto; got {address!r}."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except (OSError, ValueError) as error:  # a host's name may be none
        why = getattr(error, "strerror", None) or error
        raise BadOption(
            f"There is no Ray cluster at {address} ({why}); start one with "
            "`ray start --head`, or leave the address out to use this machine."
        ) from None
