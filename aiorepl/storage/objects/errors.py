"""Translates the errors of obstore. Their texts may quote signed URLs, so only the status and the code of a reply are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiorepl.durable import ObjectStoreError

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# Codes of replies whose status is not transient: 400, or 409 for concurrent writes.
_TRANSIENT_CODES: Final = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
_EXPIRED: Final = (
    "the session token has expired, or does not belong to the access key: set new credentials (key, secret and token), or use a "
    "role, whose credentials are renewed"
)
_AZURE: Final = "the account, its key or its token is wrong, or the token has expired: correct account_name and account_key, or set a new token"
_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "NoSuchBucket": "the bucket does not exist: create it, or correct the URL",
        "ContainerNotFound": "the container does not exist: create it, or correct the URL",
        "InvalidAccessKeyId": "the store does not know the access key: correct access_key_id, or endpoint",
        "SignatureDoesNotMatch": "the secret is wrong: correct secret_access_key",
        "ExpiredToken": _EXPIRED,
        "ExpiredTokenException": _EXPIRED,
        "InvalidToken": _EXPIRED,
        "TokenRefreshRequired": _EXPIRED,
        "RequestTimeTooSkewed": "the clock of this machine is wrong: synchronize it",
        "AuthenticationFailed": _AZURE,
        "AuthorizationFailure": _AZURE,
        "PermanentRedirect": "the bucket is in another region: set region",
        "AuthorizationHeaderMalformed": "the bucket is in another region: set region",
        "AccessDenied": "the credentials lack a permission: they need to list, get, put and delete objects below the prefix",
    }
)
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
# How to set credentials, by obstore's name of the store. obstore looks for them in the machine's metadata last.
_CREDENTIALS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "S3": "set access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        "GCS": "set service_account in config, or GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS in the environment",
        "MicrosoftAzure": "set account_key in config, or AZURE_STORAGE_ACCOUNT_KEY in the environment",
    }
)
_DENIED: Final = (
    "access was denied: check the credentials, that they have not expired, and that they may list, get, put and delete objects "
    "there"
)


def translate(error: Exception) -> ObjectStoreError:
    """Say what an error of obstore means, and what to do."""
    text = str(error)
    if "169.254." in text:
        advice = next((each for name, each in _CREDENTIALS.items() if f"Generic {name} " in text), "set them")
        return ObjectStoreError(
            f"no credentials: {advice}, or run on a machine that has a role", transient=True
        )
    status, code = status_of(error), code_of(error)
    if status is not None:
        if code == "NoSuchUpload":
            # The upload was completed and the reply was lost, or a lifecycle rule has aborted the upload.
            return ObjectStoreError("the multipart upload no longer exists", transient=True)
        status_text = f"{status} {code}" if code else str(status)
        if status in _TRANSIENT_STATUSES or code in _TRANSIENT_CODES:
            return ObjectStoreError(f"the store replied {status_text}", transient=True)
        advice = _ADVICE.get(code or "", _DENIED if status in (401, 403) else "it rejects the request")
        return ObjectStoreError(f"the store replied {status_text}: {advice}", transient=False)
    if isinstance(error, PermissionError):
        return ObjectStoreError(_DENIED, transient=False)
    if isinstance(error, FileNotFoundError):
        return ObjectStoreError(
            "the bucket or container does not exist: create it, or correct the URL", transient=False
        )
    if isinstance(error, NotImplementedError):
        return ObjectStoreError(
            "the store is configured without conditional writes: remove conditional_put from config and environment",
            transient=False,
        )
    return ObjectStoreError(
        f"no answer from the store ({type(error).__name__}): check the endpoint and the network",
        transient=True,
    )


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the reply, if there was one."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def code_of(error: BaseException) -> str | None:
    """Return the code in the reply's body, such as NoSuchKey."""
    match = _CODE.search(str(error))
    return match[1] if match else None


def no_bucket(error: BaseException) -> bool:
    """Whether the bucket is missing, and not only an object."""
    return code_of(error) in _NO_BUCKET
