"""A base class for the records that every import of pseudograd loads.

`dataclasses.dataclass` compiles methods for each class, which takes a millisecond for each. The records here share one set of methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass_transform(frozen_default=True, eq_default=False)
class Record:
    """A class like those of `dataclass(frozen=True, eq=False, repr=False)`. Its annotations are the fields. A record equals only itself.

    Only type checkers read kw_only: at run time, fields may also come by position. All records share the default of a field.
    """

    _names: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, object]] = {}

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        own = tuple(cls.__annotations__)
        cls._names = (*cls._names, *own)
        cls._defaults = {**cls._defaults, **{name: vars(cls)[name] for name in own if name in vars(cls)}}

    def __init__(self, *values: object, **named: object) -> None:
        names = self._names
        fields = {**self._defaults, **dict(zip(names, values)), **named}  # noqa: B905  the other fields have names or defaults
        if fields.keys() != set(names) or len(values) > len(names) or not named.keys().isdisjoint(names[: len(values)]):
            required = ", ".join(name for name in names if name not in self._defaults)
            wrong = ", ".join(fields.keys() ^ set(names)) or "none"
            raise TypeError(f"{type(self).__name__} needs {required}, each once; wrong or missing: {wrong}")
        vars(self).update(fields)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Subclasses compute further values from the fields here, and add them to vars(self)."""

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name} must not be set: records do not change, make one with `replaced`"
        )

    __delattr__ = __setattr__

    def replaced(self, **changes: object) -> Self:
        """A new record with changed fields."""
        return type(self)(**{**{name: vars(self)[name] for name in self._names}, **changes})
