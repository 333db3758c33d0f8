"""Splits the text of arrays and composites into the texts of their parts, for the conversion of many at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiorepl.values.arrays import parse
from aiorepl.values.composites import CompositeText
from aiorepl.values.forms import FunctionForm

Raw = bytes | None


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of arrays.

    :param offsets: for each level of nested lists, the outermost first, the beginning of each list, and the end of the last list.
    :param missing: for each array, whether it is NULL or does not fit.
    :param unfit: whether some array does not fit: it has other dimensions, or is not an array.
    :param flat: the elements of the innermost lists.
    """

    offsets: Sequence[Sequence[int]]
    missing: Sequence[bool]
    unfit: bool
    flat: Sequence[Raw]


def elements(values: Sequence[Raw], delimiter: str, levels: int) -> Elements:
    """Split arrays.

    :param levels: the number of dimensions that an array must have; an empty array always fits.
    """
    lists: list[list[Any]] = []
    missing = []
    unfit = False
    for value in values:
        found: list[Any] | None = None
        if value is not None:
            try:
                found = parse(value, delimiter)
            except (ValueError, LookupError):
                found = None
            if found is None or (found and not _has_levels(found, levels)):
                found, unfit = None, True
        lists.append(found or [])
        missing.append(found is None)
    offsets = [_offsets(lists)]
    for _ in range(levels - 1):
        lists = [inner for outer in lists for inner in outer]
        offsets.append(_offsets(lists))
    return Elements(offsets, missing, unfit, [element for each in lists for element in each])


def _has_levels(tree: list[Any], levels: int) -> bool:
    """Whether all elements are nested ``levels`` deep."""
    kinds = set(map(type, tree))
    if levels == 1:
        return list not in kinds
    return kinds == {list} and all(_has_levels(inner, levels - 1) for inner in tree)


def _offsets(lists: Sequence[Sequence[Any]]) -> list[int]:
    found = [0]
    for each in lists:
        found.append(found[-1] + len(each))
    return found


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of composites.

    :param columns: the values by attribute.
    :param missing: for each composite, whether it is NULL or does not fit.
    :param unfit: whether some composite does not fit: it has another number of attributes, or is not a composite.
    """

    columns: Mapping[str, Sequence[Raw]]
    missing: Sequence[bool]
    unfit: bool


def attributes(values: Sequence[Raw], names: Sequence[str]) -> Attributes:
    """Split composites.

    :param names: the names of the attributes.
    """
    form = CompositeText(names, [FunctionForm(bytes)] * len(names))
    nothing = dict.fromkeys(names)
    rows: list[Mapping[str, Raw]] = []
    missing = []
    unfit = False
    for value in values:
        found: Mapping[str, Raw] | None = None
        if value is not None:
            try:
                found = form.read(value)
            except (ValueError, LookupError):
                unfit = True
        rows.append(nothing if found is None else found)
        missing.append(found is None)
    return Attributes({name: [row[name] for row in rows] for name in names}, missing, unfit)
