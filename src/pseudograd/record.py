"""A base for the records that a program has read before its first call.

`dataclasses.dataclass` writes and compiles methods for each class, a millisecond each at every import; these share theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass_transform(frozen_default=True, eq_default=False)
class Record:
    """What `dataclass(frozen=True, eq=False, repr=False)` makes of a class: its annotations are the fields, a record equals only itself.

    kw_only is for type checkers: at run time fields may also be given by position. A default is shared by all records, never changed.
    """

    _names: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, object]] = {}

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        own = tuple(cls.__annotations__)
        cls._names = (*cls._names, *own)
        cls._defaults = {**cls._defaults, **{name: vars(cls)[name] for name in own if name in vars(cls)}}

    def __init__(self, *values: object, **named: object) -> None:
        names = self._names
        fields = {**self._defaults, **dict(zip(names, values)), **named}  # noqa: B905  the rest have names or defaults
        if fields.keys() != set(names) or len(values) > len(names) or not named.keys().isdisjoint(names[: len(values)]):
            needed = ", ".join(name for name in names if name not in self._defaults)
            wrong = ", ".join(fields.keys() ^ set(names)) or "none"
            raise TypeError(f"{type(self).__name__} needs {needed}, each once; wrong or missing: {wrong}")
        vars(self).update(fields)
        self.__post_init__()

    def __post_init__(self) -> None:
        """For what a record derives from its fields: it may still put it into vars(self)."""

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name} must not be set: records do not change, make one with `replaced`"
        )

    __delattr__ = __setattr__  # type: ignore[assignment]

    def replaced(self, **changes: object) -> Self:
        """Another record, with these fields instead."""
        return type(self)(**{**{name: vars(self)[name] for name in self._names}, **changes})
