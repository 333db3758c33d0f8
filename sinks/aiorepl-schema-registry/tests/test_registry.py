"""What the registry refuses and when it is away: the class of the error, what to do, and no credentials."""

from __future__ import annotations

import shutil

import certifi
import pytest
from password import PASSWORD, server

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl_schema_registry.avro import AvroFormat
from aiorepl_schema_registry.protobuf import ProtobufFormat

FORMATS = [AvroFormat, ProtobufFormat]
INT, BIG, TEXT = 23, 20, 25


class Rows:
    """Rows of a table that changes."""

    def __init__(self):
        self.stream, self.table = Stream(), None

    def __call__(self, *columns, values):
        described = [column(name, oid, key=name == "id") for name, oid in columns]
        replaced = {} if self.table is None else {"replaces": self.table}
        self.table = self.stream.table("t", *described, **replaced)
        self.stream.transaction(self.table.insert(*values))
        return self.stream.slices()[0].changes[0]


async def written(form, change, topic):
    bound = form.to(topic)
    await bound.prepare(change)
    return bound.event(change)


@pytest.mark.parametrize("make", FORMATS)
async def test_incompatible(make, registry_url, client, topic):
    """An incompatible schema is a permanent error that names the subject and the remedies; earlier rows still have events."""
    form, rows = make(registry_url), Rows()
    first = rows(("id", INT), ("a", INT), values=("1", "2"))
    event = await written(form, first, topic)
    client.set_compatibility(subject_name=f"{topic}-value", level="BACKWARD")
    added = rows(("id", INT), ("a", INT), ("b", TEXT), values=("1", "2", "x"))
    assert (await written(form, added, topic))[:5] != event[:5]
    retyped = rows(("id", INT), ("a", TEXT), values=("1", "y"))
    with pytest.raises(
        PermanentError, match=f"subject {topic}-value.*compatibility.*another topic"
    ) as caught:
        await written(form, retyped, topic)
    assert not caught.value.fatal
    assert await written(form, first, topic) == event == await written(make(registry_url), first, topic)
    # Once the subject allows it, the same change has an event.
    client.set_compatibility(subject_name=f"{topic}-value", level="NONE")
    assert (await written(form, retyped, topic))[:5] != event[:5]


@pytest.mark.parametrize("make", FORMATS)
async def test_a_dropped_column_is_compatible(make, registry_url, client, topic):
    """Columns may be added and dropped; Avro may be read in both directions."""
    form, rows = make(registry_url), Rows()
    await written(form, rows(("id", INT), ("a", INT), values=("1", "2")), topic)
    # Apicurio takes a new field of Protobuf for a removed one in the other direction.
    level = "FULL_TRANSITIVE" if make is AvroFormat else "BACKWARD_TRANSITIVE"
    client.set_compatibility(subject_name=f"{topic}-value", level=level)
    await written(form, rows(("id", INT), values=("1",)), topic)
    await written(form, rows(("id", INT), ("b", TEXT), values=("1", "x")), topic)


@pytest.mark.parametrize(
    ("columns", "compatible"),
    [
        ([("a", INT), ("b", INT)], FORMATS),
        ([], FORMATS),
        ([("b", INT)], FORMATS),
        ([("a", BIG)], [AvroFormat]),
        ([("a", TEXT)], []),
    ],
    ids=["add", "drop", "rename", "widen", "retype"],
)
@pytest.mark.parametrize("make", FORMATS)
async def test_compatible_backward(make, columns, compatible, registry_url, client, topic):
    """Changes of a table are compatible as the README says."""
    form, rows = make(registry_url), Rows()
    await written(form, rows(("id", INT), ("a", INT), values=("1", None)), topic)
    client.set_compatibility(subject_name=f"{topic}-value", level="BACKWARD")
    change = rows(("id", INT), *columns, values=("1", *(None for _ in columns)))
    if make in compatible:
        assert await written(form, change, topic)
    else:
        with pytest.raises(PermanentError, match="not compatible"):
            await written(form, change, topic)


@pytest.mark.parametrize("make", FORMATS)
async def test_registration_off(make, registry_url, client, topic):
    """Without registration nothing is written to the registry, and a schema that another writer registered is used."""
    reads, rows = make(registry_url, register=False), Rows()
    change = rows(("id", INT), values=("1",))
    with pytest.raises(PermanentError, match=f"subject {topic}-value does not have.*register"):
        await written(reads, change, topic)
    assert not [subject for subject in client.get_subjects() if subject.startswith(topic)]
    event = await written(make(registry_url), change, topic)
    assert await written(reads, change, topic) == event


async def test_no_requests_for_known_schemas(registry_url, topic):
    """After its first row, a table needs no registry until its columns change."""
    with server(registry_url) as proxy:
        form, rows = AvroFormat({"url": proxy.url, "basic.auth.user.info": f"user:{PASSWORD}"}), Rows()
        columns = ("id", INT), ("a", TEXT)
        await written(form, rows(*columns, values=("1", "x")), topic)
        asked = proxy.requests
        assert asked > 0
        # The server describes the table again, as after a reconnect.
        await written(form, rows(*columns, values=("2", "y")), topic)
        assert proxy.requests == asked
        await written(form, rows(("id", INT), values=("2",)), topic)
        assert proxy.requests > asked


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("status", "error", "fatal"),
    [
        (503, TransientError, None),
        (429, TransientError, None),
        (403, PermanentError, True),
        (422, PermanentError, False),
    ],
)
async def test_answers(make, status, error, fatal, registry_url, topic):
    """Each answer has its class of error; the same change has an event once the registry answers well."""
    with server(registry_url) as proxy:
        settings = {"url": proxy.url, "basic.auth.user.info": f"user:{PASSWORD}", "max.retries": 0}
        form, change = make(settings), Rows()(("id", INT), values=("1",))
        proxy.status = status
        with pytest.raises(error) as caught:
            await written(form, change, topic)
        assert_secret(caught.value)
        assert fatal is None or caught.value.fatal == fatal
        proxy.status = None
        assert await written(form, change, topic) == await written(make(registry_url), change, topic)


@pytest.mark.parametrize("how", ["url", "property"])
async def test_credentials_stay_secret(how, registry_url, topic):
    """Credentials reach the registry, and appear in no error and no repr."""
    change = Rows()(("id", INT), values=("1",))
    with server(registry_url) as proxy:

        def settings(password, port=None):
            url = proxy.url if port is None else f"http://127.0.0.1:{port}"
            if how == "url":
                return {"url": url.replace("//", f"//user:{password}@"), "max.retries": 0}
            return {"url": url, "basic.auth.user.info": f"user:{password}", "max.retries": 0}

        form = AvroFormat(settings(PASSWORD))
        assert await written(form, change, topic)
        assert PASSWORD not in f"{form!r} {vars(form)!r} {vars(form._registry)!r}"
        with pytest.raises(PermanentError, match="credentials") as denied:
            await written(AvroFormat(settings(f"{PASSWORD}-wrong")), change, topic)
        assert denied.value.fatal
        with pytest.raises(TransientError, match=f"{topic}-value") as away:
            await written(AvroFormat(settings(PASSWORD, port=1)), change, topic)
    for caught in (denied, away):
        assert_secret(caught.value)


async def test_an_authorization_server_that_quotes_a_secret(registry_url, topic):
    """The text of an authorization server is not passed on."""
    change = Rows()(("id", INT), values=("1",))
    with server(registry_url) as proxy:
        settings = {
            "url": proxy.url,
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": "client",
            "bearer.auth.client.secret": PASSWORD,
            "bearer.auth.scope": "schemas",
            "bearer.auth.issuer.endpoint.url": f"{proxy.url}/token",
            "bearer.auth.logical.cluster": "cluster",
            "bearer.auth.identity.pool.id": "pool",
            "max.retries": 0,
        }
        with pytest.raises(TransientError, match="OAuthTokenError") as caught:
            await written(AvroFormat(settings), change, topic)
    assert_secret(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"url": f"ftp://user:{PASSWORD}@host"},
        {"url": "http://host", "basic.auth.user.info": PASSWORD},
        {"url": "http://h", PASSWORD: 1},
    ],
)
def test_wrong_settings(settings):
    """Settings that the client refuses are a configuration error without their values."""
    with pytest.raises(ConfigurationError, match="registry") as caught:
        AvroFormat(settings)
    assert_secret(caught.value)


async def test_certificates_that_are_away(topic, tmp_path):
    """A file of certificates that is being replaced is a transient error."""
    file = tmp_path / "ca.pem"
    shutil.copy(certifi.where(), file)
    form = AvroFormat({"url": "https://127.0.0.1:1", "ssl.ca.location": str(file), "max.retries": 0})
    file.unlink()
    with pytest.raises(TransientError, match="certificates") as caught:
        await written(form, Rows()(("id", INT), values=("1",)), topic)
    assert_secret(caught.value)


async def test_a_url_without_a_registry(registry_url, topic):
    """A wrong path is not taken for a registry without the schema."""
    change = Rows()(("id", INT), values=("1",))
    with pytest.raises(PermanentError, match="check its path") as caught:
        await written(AvroFormat(registry_url.replace("v7", "nothing")), change, topic)
    assert caught.value.fatal


def assert_secret(error):
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    assert PASSWORD not in f"{error} {error!r}"
