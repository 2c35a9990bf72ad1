"""Copies of model files, so that workers on one machine share no page cache."""

import shutil
from pathlib import Path

from godwit.errors import ConfigError


def check_room(folder: Path, needed_bytes: int, spare_bytes: int, whose: str) -> None:
    """ConfigError where so many bytes of copies would leave less than `spare_bytes` on `folder`'s disk."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + spare_bytes:
        raise ConfigError(
            f"the {whose} copies of the models take {needed_bytes / 1e6:.0f} MB, and {folder.parent} has "
            f"{free_bytes / 1e6:.0f} MB left: make room there, or name another folder in TMPDIR"
        )
