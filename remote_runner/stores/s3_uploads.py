"""Uploads in parts that broke off: found and aborted. They show in no listing of objects and cost money for ever.

obstore aborts what fails while it lives; what a kill left needs two requests that it does not offer, so they are
signed here (AWS Signature Version 4, header form) and sent with the standard library.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from remote_runner.stores import StoreAway, StoreRefused

TIMEOUT_S = 30
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Account:
    """A bucket and the keys to it."""

    bucket: str
    endpoint: str  # empty: AWS itself
    region: str
    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)

    def address(self, key: str = "") -> str:
        if self.endpoint:
            return f"{self.endpoint.rstrip('/')}/{self.bucket}/{quote(key)}".rstrip("/")
        return f"https://{self.bucket}.s3.{self.region}.amazonaws.com/{quote(key)}"


def signed_headers(account: Account, method: str, url: str, now: datetime.datetime) -> dict[str, str]:
    """The headers of a request without a body. Source: AWS, "Signature Version 4 signing process"."""
    parts = urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": parts.netloc, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if account.token:
        headers["x-amz-security-token"] = account.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{k}:{headers[k]}\n" for k in sorted(headers))
    query = "&".join(sorted(p if "=" in p else p + "=" for p in parts.query.split("&") if p))
    request = "\n".join([method, parts.path or "/", query, lines, names, _EMPTY])
    scope = f"{day}/{account.region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{account.secret}".encode()
    for part in (day, account.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={account.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    del headers["host"]  # urllib sends it
    return headers


def abort_uploads(account: Account, prefix: str) -> int:
    """Abort every unfinished upload below a prefix.

    Returns:
        How many there were.

    Raises:
        StoreAway, StoreRefused.
    """
    listing = _ask(account, "GET", f"{account.address()}?prefix={quote(prefix, safe='')}&uploads=")
    found = []
    for upload in ElementTree.fromstring(listing).iter():  # noqa: S314 - as above
        if upload.tag.rpartition("}")[2] == "Upload":
            facts = {child.tag.rpartition("}")[2]: child.text or "" for child in upload}
            if facts.get("Key", "").startswith(prefix):
                found.append((facts["Key"], facts["UploadId"]))
    for key, upload_id in found:
        _ask(account, "DELETE", f"{account.address(key)}?uploadId={quote(upload_id, safe='')}")
    return len(found)


def _ask(account: Account, method: str, url: str) -> bytes:
    headers = signed_headers(account, method, url, datetime.datetime.now(datetime.timezone.utc))  # noqa: UP017 - 3.10 on pods
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - the user's own store
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as e:
        if e.code == 404:
            return b"<none/>"
        said = f"s3://{account.bucket}: {method} of unfinished uploads: HTTP {e.code}"
        raise (StoreAway(said) if e.code >= 500 or e.code == 429 else StoreRefused(said)) from None
    except OSError as e:
        raise StoreAway(f"s3://{account.bucket}: {getattr(e, 'reason', e)}") from None
