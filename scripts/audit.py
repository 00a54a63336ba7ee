"""Ask whether a pinned dependency has a known vulnerability: `make audit`.

    python scripts/audit.py constraints.txt

pip-audit ends with 0 where it could not look a package up. Here that is a failure: no answer is not
a good one. Exit codes: 0 none is known, 1 some are, 3 the service could not be asked.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

UNKNOWN = 3
SERVICES = ("pypi", "osv")
MOST_SKIPPED = 0.05  # share of packages; some wheels carry no name that a service knows


def asked(file: Path, service: str) -> list[dict[str, Any]]:
    """What a service says of every package, in pip-audit's words; empty if it cannot be asked."""
    command = [
        sys.executable, "-m", "pip_audit", "-r", str(file), "--no-deps", "--disable-pip",
        "--progress-spinner", "off", "--timeout", "15", "--format", "json", "-s", service,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        return found
    except (ValueError, KeyError):
        return []


def main() -> int:
    """Ask one service after the other until one has answered."""
    if find_spec("pip_audit") is None:
        print("pip-audit is not installed here; `make audit` installs it.")
        return UNKNOWN
    file = Path(sys.argv[1])
    for service in SERVICES:
        packages = asked(file, service)
        skipped = [each for each in packages if "skip_reason" in each]
        if not packages or len(skipped) > MOST_SKIPPED * len(packages):
            known = f"{len(packages) - len(skipped)} of {len(packages)}" if packages else "none"
            print(f"{service}: not audited, the service knew {known} of the packages.")
            continue
        wrong = [each for each in packages if each.get("vulns")]
        for each in wrong:
            ids = ", ".join(found["id"] for found in each["vulns"])
            print(f"{each['name']} {each['version']}: {ids}")
        print(
            f"{service}: {len(packages) - len(skipped)} packages audited, {len(wrong)} to look at."
        )
        return int(bool(wrong))
    print(
        f"{file} was NOT audited: no vulnerability service ({', '.join(SERVICES)}) can be reached "
        "from here. Run `make audit` where there is a network."
    )
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
