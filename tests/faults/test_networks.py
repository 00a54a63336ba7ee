"""Two Ray nodes in network namespaces, and a cable between them that is pulled out."""

import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from disturbance import LIMIT, count, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.faults
RAY = str(Path(sys.executable).with_name("ray"))
HEAD, OTHER = "10.231.77.1", "10.231.77.2"
PORT = 6399
# Ray's own settings: after so many missed answers, a second apart, a node counts as dead.
CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # other addresses than loopback
}


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@dataclass
class Wire:
    """Two namespaces and the cable between them; nothing else can be reached from either."""

    name: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def spaces(self):
        return [f"{self.name}h", f"{self.name}o"]

    def lay(self):
        """Why it cannot be, or nothing."""
        head, other = self.spaces
        made = [ip("netns", "add", space) for space in self.spaces]
        cable = ("type", "veth", "peer", "name", "end", "netns", other)
        made.append(ip("-n", head, "link", "add", "end", *cable))
        for space, address in zip(self.spaces, (HEAD, OTHER), strict=True):
            made.append(ip("-n", space, "address", "add", f"{address}/24", "dev", "end"))
            made += [ip("-n", space, "link", "set", device, "up") for device in ("lo", "end")]
        return next((each.stderr.strip() for each in made if each.returncode), "")

    def within(self, place):
        return ("ip", "netns", "exec", self.spaces[place])

    def start(self, place, *arguments):
        """Start a Ray node."""
        node = subprocess.Popen(
            [*self.within(place), RAY, "start", "--block", "--num-cpus=1", "--num-gpus=0",
             "--object-store-memory=134217728", *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | CHECKS,
        )  # fmt: skip
        self.started.append(node)

    def pull(self):
        """Pull the cable out."""
        assert ip("-n", self.spaces[1], "link", "set", "end", "down").returncode == 0

    def plug(self):
        """Put it back."""
        assert ip("-n", self.spaces[1], "link", "set", "end", "up").returncode == 0

    def clear(self):
        for node in self.started:
            for process in [*psutil.Process(node.pid).children(recursive=True), node]:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            node.wait()
        for space in self.spaces:
            ip("netns", "delete", space)


@pytest.fixture
def wire():
    laid = Wire(f"caploc{os.getpid()}")
    try:
        if why := laid.lay():
            pytest.skip(f"no network namespaces here: {why}")
        yield laid
    finally:
        laid.clear()


def listening(wire):
    asked = ["python3", "-c", f"import socket; socket.create_connection(('{HEAD}', {PORT}), 1)"]
    return subprocess.run([*wire.within(1), *asked], capture_output=True).returncode == 0


def nodes_alive(wire):
    asked = subprocess.run(
        [*wire.within(0), sys.executable, "-c", ALIVE],
        capture_output=True, text=True, env=os.environ | CHECKS,
    )  # fmt: skip
    return int(asked.stdout.strip() or 0)


ALIVE = f"""
import ray
ray.init(address="{HEAD}:{PORT}", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
"""


def test_the_network_between_two_nodes_fails(job, truth, tmp_path, wire, tally):
    """network partition between two Ray nodes"""
    wire.start(0, "--head", f"--port={PORT}", f"--node-ip-address={HEAD}",
               "--include-dashboard=false")  # fmt: skip
    wait_until(lambda: listening(wire))
    wire.start(1, f"--address={HEAD}:{PORT}", f"--node-ip-address={OTHER}")
    wait_until(lambda: nodes_alive(wire) == 2)
    folder = tmp_path / "run"
    spread = job.adding(
        "--workers", "ray", "--ray-address", f"{HEAD}:{PORT}", "--cpus-per-worker", "1"
    )  # fmt: skip
    process = spread.open(folder, wire.within(0), **CHECKS)
    wait_until(lambda: count(folder) > 0, process)
    wire.pull()
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    rows = count(folder)
    job.finish(folder)  # the result says which command it is of
    assert count(folder) == rows
    tally.compare(folder, truth, 1)
