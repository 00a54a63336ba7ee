"""Go through the checklist of a release: nothing is uploaded, each step says what it found.

    python scripts/release.py [--no-dependencies]

Version, changelog and citation agree; the tree is clean; wheel and source archive are built into
build/dist, their metadata is valid; the wheel, installed into an empty environment, says its
version. Needs `make .venv/.installed-package`. What stays to be done by hand is printed at the end.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
DIST = ROOT / "build" / "dist"
BY_HAND = """\
By hand, in this order:
    git tag -s v{version} && git push origin v{version}
    python -m twine upload build/dist/caploc-{version}*"""


def run(*command: object) -> str:
    """Run a command, which must succeed; return what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_version() -> str:
    """Return the version that project, citation and changelog agree on.

    Raises:
        SystemExit: if one names another version, or the changelog calls it unreleased.
    """
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    if not re.search(
        rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), re.M
    ):
        raise SystemExit(f"CITATION.cff is not of version {version}.")
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if first is None or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", first[1]):
        said = first and first[1]
        raise SystemExit(f"CHANGELOG.md begins with {said!r}, not with '{version} (YYYY-MM-DD)'.")
    return version


def check_tree() -> None:
    """Refuse changes that are not committed."""
    if changed := run("git", "status", "--porcelain"):
        raise SystemExit(f"There are changes that are not committed:\n{changed}")


def build(version: str) -> Path:
    """Build both archives; return the wheel, whose metadata an index would accept."""
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    wheel = DIST / f"caploc-{version}-py3-none-any.whl"
    if not (wheel.exists() and (DIST / f"caploc-{version}.tar.gz").exists()):
        raise SystemExit(f"{DIST} lacks a wheel or a source archive of {version}.")
    with zipfile.ZipFile(wheel) as opened:
        data = opened.read(f"caploc-{version}.dist-info/METADATA")
    found = Metadata.from_email(data, validate=True)
    if found.description_content_type != "text/markdown" or not found.description:
        raise SystemExit("The wheel does not carry the README as Markdown.")
    return wheel


def check_installed(wheel: Path, version: str, whole: bool) -> None:
    """Install the wheel into an empty environment, and ask for its version there."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        pip = [Path(place) / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
        # without the rest, what `--version` needs
        run(*pip, wheel) if whole else run(*pip, "--no-deps", wheel)
        if not whole:
            run(*pip, "typer", "rich")
        said = run(Path(place) / "bin" / "caploc", "--version")
    if said.strip() != f"caploc {version}":
        raise SystemExit(f"The installed wheel says {said.strip()!r}, not 'caploc {version}'.")


def main() -> None:
    """Go through all steps; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--no-dependencies", action="store_true", help="install the wheel with typer and rich only"
    )
    whole = not parser.parse_args().no_dependencies
    version = check_version()
    print(f"version {version}: project, citation and changelog agree")
    check_tree()
    print("nothing is uncommitted")
    wheel = build(version)
    print(f"built {wheel.name} and its source archive, metadata valid")
    check_installed(wheel, version, whole)
    print("the wheel says its version in an empty environment")
    print(BY_HAND.format(version=version))


if __name__ == "__main__":
    main()
