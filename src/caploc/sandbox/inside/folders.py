"""Temporary directories that programs had to themselves."""

import os
import subprocess


def remove(folder: str) -> None:
    """Remove a folder, whatever a program left in it and however deep; or none."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], stderr=subprocess.DEVNULL, check=False)
