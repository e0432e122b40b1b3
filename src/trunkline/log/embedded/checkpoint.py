"""What a store must remember of its partitions beside their files, and whether it was closed in order.

On disk in the data directory:

    checkpoint.json   per partition: log start offset, recovery point (everything before is fsynced), end offset,
                      base offset and size of the active segment, offset up to which it is compacted, bytes in the
                      closed segments, number of known producers, id of the topic (as a number: a topic of the same name
                      that was deleted has another one). With a CRC-32C of all that. Replaced as a whole; a crash leaves the old
                      or the new.
    .clean_shutdown   an empty file, made by `close` after everything is on disk and removed by the next start before
                      anything is appended. While it is there, end offsets and sizes may be trusted without a scan.

Losing the checkpoint costs a full scan and the effect of trims within a segment; a damaged one counts as lost and is kept as
`checkpoint.json.damaged`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from trunkline.log.checksum import crc32c_of
from trunkline.log.embedded.files import DAMAGED_SUFFIX, fsync_directory, write_atomically
from trunkline.log.errors import StorageFailure

_FORMAT = 1
_UNCHECKED_FIELDS = 6  # of a mark as older versions wrote it, without a checksum

_logger = logging.getLogger(__name__)


class PartitionMark(NamedTuple):
    log_start_offset: int
    recovery_point: int
    end_offset: int
    active_base_offset: int
    active_size_bytes: int
    cleaned_to: int = 0
    closed_size_bytes: int = -1  # -1: not known, as in a checkpoint of an older version
    producers: int = 0
    topic_id: int = 0  # 0: not known


NO_MARK = PartitionMark(0, 0, 0, 0, -1)


class DamagedCheckpoint(StorageFailure):
    """The file is there and cannot be understood."""


class Checkpoint:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, "checkpoint.json")
        self._clean_path = os.path.join(directory, ".clean_shutdown")

    def load(self) -> dict[str, PartitionMark]:
        """The marks of all partitions. A damaged checkpoint is set aside and counts as lost."""
        try:
            return self.read()
        except DamagedCheckpoint as damage:
            aside = self._path + DAMAGED_SUFFIX
            _logger.error("%s; it is kept as %s, and every segment is checked instead", damage, aside)
            try:
                os.replace(self._path, aside)
            except OSError as error:
                raise StorageFailure(self._path, error.strerror or "cannot be renamed") from None
            return {}

    def read(self) -> dict[str, PartitionMark]:
        try:
            with open(self._path, "rb") as file:
                document = json.load(file)
            marks = {name: PartitionMark(*map(int, fields)) for name, fields in document["partitions"].items()}
            checked = any(len(fields) > _UNCHECKED_FIELDS for fields in document["partitions"].values())
            if checked and document["crc"] != _checksum(document["format"], marks):
                raise ValueError("its checksum does not match")
            if document["format"] != _FORMAT:
                raise StorageFailure(self._path, f"format {document['format']} is not known to this version")
            return marks
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageFailure(self._path, error.strerror or "cannot be read") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCheckpoint(self._path, f"is damaged: {error}") from None

    def save(self, marks: Mapping[str, PartitionMark]) -> None:
        document = {
            "format": _FORMAT,
            "partitions": {name: list(mark) for name, mark in marks.items()},
            "crc": _checksum(_FORMAT, marks),
        }
        try:
            write_atomically(self._path, json.dumps(document, separators=(",", ":")).encode(), durable=True)
        except OSError as error:
            raise StorageFailure(self._path, error.strerror or "cannot be written") from None

    def take_clean_mark(self) -> bool:
        """True if the last shutdown was clean. The mark is gone, durably, when this returns."""
        try:
            os.unlink(self._clean_path)
            fsync_directory(self._directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageFailure(self._directory, f"cannot write to the data directory: {error.strerror}") from None
        return True

    def put_clean_mark(self) -> None:
        try:
            write_atomically(self._clean_path, b"", durable=True)
        except OSError as error:
            raise StorageFailure(self._clean_path, error.strerror or "cannot be written") from None


def _checksum(form: int, marks: Mapping[str, PartitionMark]) -> int:
    return crc32c_of(repr([form, *((name, *mark) for name, mark in marks.items())]).encode())
