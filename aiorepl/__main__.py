"""``python -m aiorepl``: the console script."""

from aiorepl.cli import main

main()
