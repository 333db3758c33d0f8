"""Types of each kind that a user can create, for tests that choose types at random."""

from __future__ import annotations

from aiorepl.values import TypeInfo

USER_TYPES = (
    TypeInfo(70001, "public", "pair", "c", fields=(("a", 23), ("b", 1009))),
    TypeInfo(70002, "public", "_pair", "a", 70001),
    TypeInfo(70003, "public", "positive", "d", 23),
    TypeInfo(70004, "public", "mood", "e"),
    TypeInfo(70005, "public", "pairrange", "r", 70001),
    TypeInfo(70006, "public", "pairmultirange", "m", 70005),
    TypeInfo(70007, "public", "hstore", "b"),
    TypeInfo(70008, "public", "ltree", "b"),
    TypeInfo(70009, "public", "deep", "c", fields=(("p", 70002), ("r", 70005), ("d", 70003), ("n", 1231))),
)
