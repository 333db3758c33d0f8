"""``aiorepl spark mirror`` as a program for spark-submit."""

from __future__ import annotations

import sys

from aiorepl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["spark", "mirror"]
    main()
