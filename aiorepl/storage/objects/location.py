"""Where objects are: a URL, and the configuration of its store. The configuration has credentials, so it is never shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


@checked("object store")
@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A prefix in an object store.

    :param url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
    :param config: obstore's configuration of the store, such as S3's ``endpoint``, ``region``, ``access_key_id`` and
        ``secret_access_key``, Azure's ``account_name`` and ``account_key``, or Google's ``service_account`` (a file). It takes
        precedence over the environment (``AWS_ACCESS_KEY_ID`` …) and the machine's role.
    :raises ConfigurationError: the URL has another form, or contains credentials.
    """

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query or parts.fragment:
            # The message does not quote the URL, which contains credentials.
            raise ConfigurationError(
                "the URL of an object store contains credentials, a query or a fragment: set what is needed in config"
            )
        if parts.scheme not in SCHEMES or not parts.netloc:
            # The message does not quote the URL, in which credentials may be in the wrong place.
            raise ConfigurationError(
                f"a URL with the scheme {parts.scheme!r} is not that of an object store: it is s3://bucket/prefix, "
                "gs://bucket/prefix or az://container/prefix"
            )
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def __str__(self) -> str:
        return self.url
