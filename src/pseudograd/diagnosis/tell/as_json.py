"""A diagnosis as plain lists, dictionaries and numbers."""

from __future__ import annotations

import dataclasses
import math

import torch

from ...torch_table.eras import installed_era
from ..judge.findings import describe
from ..records import FIELDS, Report, Site

_NAMES = [name for name in FIELDS if name not in ("parameters", "idle")]
_NAMES += ["processes", "unseen"]  # fields of a `ProgramReport` only


def json_of(report: Report) -> dict[str, object]:
    return {
        "kind": "pseudograd diagnose",
        "torch": torch.__version__,
        "era": installed_era(),
        "kinds": describe(report.findings),
        **{name: plain(getattr(report, name)) for name in _NAMES if hasattr(report, name)},
    }


def plain_record(record: object) -> dict[str, object]:
    """The fields and shares of a record. It leaves out the fields with repr=False, which have a meaning only inside this process."""
    assert dataclasses.is_dataclass(record)
    names = [field.name for field in dataclasses.fields(record) if field.repr]
    if isinstance(record, Site):
        names += ["cut_share", "cut_magnitude_share", "recoverable_share", "at_bound_share", "is_guard"]
    return {name: plain(getattr(record, name)) for name in names}


def plain(value: object) -> object:
    """A value in the types of JSON."""
    if dataclasses.is_dataclass(value):
        return plain_record(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
