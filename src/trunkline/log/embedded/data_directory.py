"""The data directory: which partitions lie in it, and how one is put out of the way.

<topic>-<partition>/                       a partition
<topic>-<partition>.<id>-delete/           a deleted one whose files are being removed
<topic>-<partition>.<id>-stray/            one that no topic claims and that nobody deleted: kept, not served
"""

from __future__ import annotations

import logging
import os
import shutil
from uuid import uuid4

from trunkline.log.store import TopicPartition

_logger = logging.getLogger(__name__)
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_MAX_FILE_NAME_BYTES = 255


def find_partitions(directory: str) -> dict[str, TopicPartition]:
    """Partition directories by name. Those of a deletion that a crash interrupted are removed."""
    found: dict[str, TopicPartition] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(_DELETE_SUFFIX):
                remove(entry.path)
                continue
            topic, dash, number = entry.name.rpartition("-")
            if dash and topic and number.isdecimal() and entry.is_dir(follow_symlinks=False):
                found[entry.name] = TopicPartition(topic, int(number))
    return found


def put_away(path: str) -> str:
    """Give a partition's directory a name under which it counts as deleted; its files may be removed later."""
    return _renamed(path, _DELETE_SUFFIX)


def keep_aside(path: str) -> None:
    """Keep, under another name, what no topic claims."""
    _logger.error("%s belongs to no topic; it is kept as %s", path, _renamed(path, _STRAY_SUFFIX))


def remove(path: str) -> None:
    """What cannot be removed stays until the next start."""
    shutil.rmtree(path, ignore_errors=True)


def _renamed(path: str, suffix: str) -> str:
    tail = f".{uuid4().hex}{suffix}"
    folder, name = os.path.split(path)
    target = os.path.join(folder, name[: _MAX_FILE_NAME_BYTES - len(tail)] + tail)
    os.rename(path, target)
    return target
