"""``webhook``: sends events as HTTP requests, signed according to Standard Webhooks (https://www.standardwebhooks.com).

Guarantee: at least once, in order. A change is durable once a request that contains it was answered with 2xx; only then does
the batch's next request leave. Every other change is sent again or reported, never skipped.

**IDs.** ``webhook-id`` is derived from the cluster, the slot, the sink's name and the identities ``(commit_lsn, ordinal)`` of
exactly the events in the request. It is the same for every attempt. After a restart batches may be cut differently, and a
request with other events has another ID. A receiver that wants each event once remembers the identities of events, or takes
one event per request (``body = "event"``), where ``webhook-id`` identifies that event permanently.

**Responses.** 2xx: delivered. 408, 425, 429, 5xx, no response or an incomplete one: sent again, no sooner than Retry-After
says. 413 for several events: sent in smaller requests from then on. 410: the sink stops until it is opened again, whatever its
policy for errors. Redirects are not followed. A redirect, or a status about credentials, path or headers (401, 404 …), rejects
all that is left of the batch. Any other status rejects events: the sink sends several of them again in halves, until the
rejected ones stand alone and all others are delivered. After a hundred rejections in a row it rejects the rest of the batch.

See ``docs/reference/sinks/webhook.md``.
"""

from aiorepl_sinks.webhook.sink import WebhookSink

__all__ = ["WebhookSink"]
