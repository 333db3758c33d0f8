"""Changes as Arrow record batches."""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
