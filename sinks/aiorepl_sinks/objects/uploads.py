"""Multipart uploads that nobody will complete, of S3: found, and aborted.

obstore knows neither request. But it signs URLs, with the credentials it found wherever they were, and what these two
requests say stands behind a question mark: it is given to obstore as the end of an endpoint. Behind an endpoint comes a
slash and a name; ``x-id`` stands last and takes the slash, for S3 and its likes do not look at it.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

_SECONDS: Final = 30
_VALID: Final = timedelta(minutes=5)
_ENDPOINTS: Final = {"endpoint", "endpoint_url", "virtual_hosted_style_request"}


class Uploads:
    """The uploads of a bucket.

    :param make: makes an obstore store, of a URL and a configuration.
    :param url: where the sink's names are.
    """

    def __init__(
        self, make: Callable[[str, Mapping[str, Any]], Any], url: str, config: Mapping[str, Any]
    ) -> None:
        import obstore

        parts = urlsplit(url)
        self._signed = obstore.sign
        self._make = make
        self._bucket = f"{parts.scheme}://{parts.netloc}"
        self._prefix = f"{parts.path.strip('/')}/".lstrip("/")
        self._config = config

    def abort(self, names: Collection[str]) -> int:
        """Abort those to these names; how many there were."""
        keys = {f"{self._prefix}{name}" for name in names}
        found = [(key, upload) for key, upload in self._begun() if key in keys]
        for key, upload in found:
            try:
                self._ask("DELETE", key, {"uploadId": upload})
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.NOT_FOUND:  # it is gone already
                    raise
        return len(found)

    def _begun(self) -> Iterator[tuple[str, str]]:
        """All uploads below our prefix: the keys, and what they are known by."""
        marker: dict[str, str] = {}
        while True:
            answer = self._ask("GET", "", {"uploads": "", "prefix": self._prefix, **marker})
            page = ET.fromstring(answer)  # noqa: S314 - of the store that the data is in
            for upload in page.iterfind("{*}Upload"):
                yield upload.findtext("{*}Key", ""), upload.findtext("{*}UploadId", "")
            if page.findtext("{*}IsTruncated") != "true":
                return
            marker = {
                "key-marker": page.findtext("{*}NextKeyMarker", ""),
                "upload-id-marker": page.findtext("{*}NextUploadIdMarker", ""),
            }

    def _ask(self, method: str, key: str, query: Mapping[str, str]) -> bytes:
        """Send a request with a query."""
        place, _, _ = self._sign(self._make(self._bucket, self._config), "GET", key).partition("?")
        config: dict[str, Any] = {
            name: value
            for name, value in self._config.items()
            if name.lower().removeprefix("aws_") not in _ENDPOINTS
        }
        config["endpoint"] = f"{place.rstrip('/')}?{urlencode(query, quote_via=quote, safe='')}&x-id={method}"
        config["virtual_hosted_style_request"] = "true"  # else the bucket's name comes behind it
        url = self._sign(self._make(self._bucket, config), method, "")
        request = urllib.request.Request(url, method=method)  # noqa: S310 - the user's own endpoint
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310
            answer: bytes = response.read()
        return answer

    def _sign(self, store: Any, method: Any, path: str) -> str:
        return self._signed(store, method, path, _VALID)
