"""Aborts multipart uploads that will never be completed, in S3 and compatible stores.

obstore has no call for ListMultipartUploads and AbortMultipartUpload. But it signs URLs with the credentials that it has
found, and the parameters of both requests are in the query. So the query is passed to obstore as the end of an endpoint.
obstore appends a slash and a name to the endpoint; the parameter ``x-id`` comes last and takes the slash, because the stores
ignore its value.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

import stamina

_TIMEOUT: Final = 30
_ATTEMPTS: Final = 5
_URL_VALIDITY: Final = timedelta(minutes=5)
_ENDPOINTS: Final = {"endpoint", "endpoint_url", "virtual_hosted_style_request"}


class Uploads:
    """The multipart uploads below a prefix.

    :param make: makes an obstore store from a URL and a configuration.
    :param url: the URL of the prefix.
    :param config: the store's configuration.
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

    def abort(self, wanted: Callable[[str], bool]) -> int:
        """Abort the uploads of the objects that ``wanted`` accepts by name; return the number of uploads."""
        found = [each for each in self._list() if wanted(each[0].removeprefix(self._prefix))]
        for key, upload in found:
            try:
                self._request("DELETE", key, {"uploadId": upload})
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.NOT_FOUND:  # aborted or completed meanwhile
                    raise
        return len(found)

    def _list(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the upload ID of each upload below the prefix."""
        marker: dict[str, str] = {}
        while True:
            body = self._request("GET", "", {"uploads": "", "prefix": self._prefix, **marker})
            page = ET.fromstring(body)  # noqa: S314 - from the store that holds the data
            for upload in page.iterfind("{*}Upload"):
                yield upload.findtext("{*}Key", ""), upload.findtext("{*}UploadId", "")
            if page.findtext("{*}IsTruncated") != "true":
                return
            marker = {
                "key-marker": page.findtext("{*}NextKeyMarker", ""),
                "upload-id-marker": page.findtext("{*}NextUploadIdMarker", ""),
            }

    def _request(self, method: str, key: str, query: Mapping[str, str]) -> bytes:
        """Send a signed request with a query; return the response's body."""
        endpoint, _, _ = self._sign(self._make(self._bucket, self._config), "GET", key).partition("?")
        config: dict[str, Any] = {
            name: value
            for name, value in self._config.items()
            if name.lower().removeprefix("aws_") not in _ENDPOINTS
        }
        config["endpoint"] = (
            f"{endpoint.rstrip('/')}?{urlencode(query, quote_via=quote, safe='')}&x-id={method}"
        )
        config["virtual_hosted_style_request"] = "true"  # otherwise the bucket's name is appended
        url = self._sign(self._make(self._bucket, config), method, "")
        request = urllib.request.Request(url, method=method)  # noqa: S310 - the user's own endpoint
        for attempt in stamina.retry_context(on=_may_pass, attempts=_ATTEMPTS, timeout=_TIMEOUT):
            with attempt:
                body = _send(request)
        return body

    def _sign(self, store: Any, method: Any, path: str) -> str:
        return self._signed(store, method, path, _URL_VALIDITY)


def _send(request: urllib.request.Request) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        # The error keeps the response open, and with it the connection.
        error.close()
        raise
    return body


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code == HTTPStatus.TOO_MANY_REQUESTS
    return isinstance(error, (OSError, HTTPException))
