"""Opens the store that a path or URL names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.storage.local import LocalStore
from aiorepl.storage.objects.location import SCHEMES, ObjectStore
from aiorepl.storage.store import Store

Location: TypeAlias = str | os.PathLike[str] | ObjectStore
"""Where a journal is: a path, a ``file:`` URL, the URL of an object store, or an ``ObjectStore`` with its configuration."""


@checked("journal")
def open_store(url: Location | Store, config: Mapping[str, str] | None = None) -> Store:
    """Open the store of a journal.

    :param url: where it is; a store is returned as it is.
    :param config: the configuration of an object store, as for ``ObjectStore``.
    :raises ConfigurationError: the URL is empty or has another scheme, or the configuration is wrong.
    """
    if isinstance(url, str) and urlsplit(url).scheme in SCHEMES:
        url = ObjectStore(url, config or {})
    elif config:
        raise ConfigurationError("config is for the URLs of object stores: s3://, gs:// and az://")
    if isinstance(url, ObjectStore):
        # Imported here, because most journals are folders.
        from aiorepl.storage.remote import RemoteStore

        return RemoteStore(url)
    if isinstance(url, str) and url.startswith("file:"):
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"a journal's folder is on this machine: {parts.hostname} is not localhost"
            )
        return LocalStore(unquote(parts.path))
    if isinstance(url, str) and "://" in url:
        raise ConfigurationError(
            f"a journal is in a folder or an object store: {url.partition('://')[0]}:// is neither file:// nor s3://, gs:// or "
            "az://"
        )
    return LocalStore(url) if isinstance(url, (str, os.PathLike)) else url
