"""Inserts chunks into the stream that were read beside it. Pure.

``merge`` sees every slice of the stream. It takes out the requests that come as messages (``signals``) and the *watermarks*, shows
the other slices to the ``window``, which records the rows that the stream has *overtaken* (``overtaken``), and replaces a
watermark by the rest of its chunk (``chunk_rows``).
"""
