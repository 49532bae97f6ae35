"""Object stores, by obstore: S3 and what speaks it (R2, B2, MinIO, RunPod volumes); others are opened, untested.

    s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION

Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else from ~/.aws/credentials (AWS_PROFILE names the
section); the endpoint also from AWS_ENDPOINT_URL. An ETag is never taken for a hash: of an object that came in
parts it is none. obstore's own retries are off, steady.py has the one policy.

Not here: uploads in parts that broke off (s3_uploads.py).
"""

from __future__ import annotations

import builtins
import configparser
import errno
import hashlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from remote_runner.errors import UsageFault
from remote_runner.pod import files
from remote_runner.stores import Object, StoreAway, StoreRefused
from remote_runner.stores.s3_uploads import Account, abort_uploads

T = TypeVar("T")
PART_BYTES = 8 << 20
_SIGNED = re.compile(r"\?[^\s\"']*(?:X-Amz-|Signature|sig=)[^\s\"']*")
_REFUSED = re.compile(
    r"\b(?:400|401|403|405|411|413|501|507)\b|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken"
    r"|RequestTimeTooSkewed|NoSuchBucket|builder error|Unauthenticated|PermissionDenied"
)


def unsigned(text: str) -> str:
    """A text without the signatures of the addresses in it."""
    return _SIGNED.sub("?…", text)


def open_objects(url: str) -> Objects:
    """The store behind a URL.

    Raises:
        UsageFault: obstore is not installed, no bucket, no credentials, or a scheme that it does not open.
    """
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise UsageFault(
            f"{url}: object stores need obstore, which is not installed", fix="pip install 'remote-run[stores]'"
        ) from None
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return _other(url)
    query = {k: v[-1] for k, v in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    if unknown := set(query) - {"endpoint", "region"}:
        raise UsageFault(f"{url}: unknown in it: {', '.join(sorted(unknown))}", fix="known: endpoint, region")
    if not parts.netloc:
        raise UsageFault(f"{url}: names no bucket", fix="write s3://BUCKET/PREFIX")
    account = _account(parts.netloc, query)
    return Objects(_s3(account), parts.path.strip("/"), f"s3://{parts.netloc}", account)


def credentials(url: str) -> dict[str, str]:
    """The environment variables that open a store elsewhere, as they hold here."""
    account = _account(urlsplit(url).netloc, {})
    found = {"AWS_ACCESS_KEY_ID": account.key_id, "AWS_SECRET_ACCESS_KEY": account.secret, "AWS_REGION": account.region}
    for name, value in (("AWS_SESSION_TOKEN", account.token), ("AWS_ENDPOINT_URL", account.endpoint)):
        if value:
            found[name] = value
    return found


def _account(bucket: str, query: dict[str, str]) -> Account:
    profile = configparser.ConfigParser()
    profile.read(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser())
    section = os.environ.get("AWS_PROFILE", "default")
    found = dict(profile[section]) if profile.has_section(section) else {}

    def value(name: str) -> str:
        return os.environ.get(name.upper()) or str(found.get(name, ""))

    account = Account(
        bucket=bucket,
        endpoint=query.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", ""),
        region=query.get("region") or os.environ.get("AWS_REGION") or value("aws_default_region") or "us-east-1",
        key_id=value("aws_access_key_id"),
        secret=value("aws_secret_access_key"),
        token=value("aws_session_token"),
    )
    if not account.key_id or not account.secret:
        raise UsageFault(
            f"s3://{bucket}: no credentials",
            fix=f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into ~/.aws/credentials [{section}]",
        )
    return account


def _s3(account: Account) -> Any:
    from datetime import timedelta

    from obstore.store import S3Store

    more: dict[str, Any] = {"session_token": account.token} if account.token else {}
    return S3Store(
        account.bucket,
        endpoint=account.endpoint or None,
        region=account.region,
        access_key_id=account.key_id,
        secret_access_key=account.secret,
        virtual_hosted_style_request=not account.endpoint,
        client_options={"allow_http": True, "timeout": timedelta(minutes=10), "connect_timeout": timedelta(seconds=10)},
        retry_config={"max_retries": 0},
        **more,
    )


def _other(url: str) -> Objects:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    parts = urlsplit(url)
    try:
        opened = from_url(f"{parts.scheme}://{parts.netloc}", retry_config={"max_retries": 0})
    except (BaseError, ValueError) as e:
        raise UsageFault(
            f"{url}: not a store that can be opened: {str(e).splitlines()[0][:200]}",
            fix="give a directory, s3://BUCKET/PREFIX or sftp://USER@HOST/path",
        ) from None
    print(f"note: stores of the kind {parts.scheme}:// are not tested; a backup is read back all the same",
          file=sys.stderr)  # fmt: skip
    return Objects(opened, parts.path.strip("/"), f"{parts.scheme}://{parts.netloc}", None)


class Objects:
    """See `Store`."""

    def __init__(self, opened: Any, prefix: str, shown: str, account: Account | None) -> None:
        self._store, self._prefix, self._shown, self._account = opened, prefix, shown, account

    def _key(self, key: str) -> str:
        files.parts(key.rstrip("/"))
        return f"{self._prefix}/{key}" if self._prefix else key

    def _do(self, key: str, action: Callable[[], T]) -> T:
        from obstore import exceptions

        try:
            return action()
        except (FileNotFoundError, exceptions.NotFoundError) as e:
            if "NoSuchBucket" in str(e):
                raise StoreRefused(f"{self._shown}: there is no such bucket") from None
            raise FileNotFoundError(errno.ENOENT, "not in the store", f"{self._shown}/{self._key(key)}") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as e:
            raise StoreRefused(self._say(key, e)) from None
        except (exceptions.BaseError, OSError) as e:
            if isinstance(e, (StoreAway, StoreRefused)):
                raise
            said = self._say(key, e)
            raise (StoreRefused(said) if _REFUSED.search(said) else StoreAway(said)) from None

    def _say(self, key: str, error: Exception) -> str:
        """What the store said, without keys and signed addresses."""
        text = " ".join(str(error).split())
        text = unsigned(text)
        for secret in (self._account.key_id, self._account.secret, self._account.token) if self._account else ():
            text = text.replace(secret, "***") if secret else text
        hint = ""
        if "TimeTooSkewed" in text:
            hint = ": the clock of this machine is wrong by more than the store allows; set it"
        elif "ExpiredToken" in text or "InvalidAccessKeyId" in text or "SignatureDoesNotMatch" in text:
            hint = ": its credentials are expired or wrong; renew them"
        return f"{self._shown}/{self._key(key)}{hint}: {text[:400]}"

    def has(self, key: str) -> int | None:
        import obstore

        try:
            return int(self._do(key, lambda: obstore.head(self._store, self._key(key)))["size"])
        except FileNotFoundError:
            return None

    def put_file(self, key: str, source: Path) -> None:
        import obstore

        size = source.stat().st_size
        name = self._key(key)
        self._do(
            key,
            lambda: obstore.put(self._store, name, source, use_multipart=size > PART_BYTES, chunk_size=PART_BYTES),
        )

    def put(self, key: str, content: bytes) -> None:
        import obstore

        self._do(key, lambda: obstore.put(self._store, self._key(key), content, use_multipart=False))

    def get(self, key: str) -> bytes:
        import obstore

        return bytes(self._do(key, lambda: obstore.get(self._store, self._key(key)).bytes()))

    def fetch(self, key: str, to: Path) -> None:
        with to.open("wb") as target:

            def take(block: memoryview) -> None:
                try:
                    target.write(block)
                except OSError as e:
                    raise StoreRefused(e.errno, f"the disk here, {to}: {e.strerror}") from None

            self._do(key, lambda: self._stream(key, take))
            target.flush()
            os.fsync(target.fileno())

    def digest(self, key: str) -> str:
        found = hashlib.sha256()
        self._do(key, lambda: self._stream(key, found.update))
        return found.hexdigest()

    def _stream(self, key: str, take: Callable[[memoryview], object]) -> None:
        import obstore

        result = obstore.get(self._store, self._key(key))
        size, got = int(result.meta["size"]), 0
        for block in result.stream(min_chunk_size=1 << 20):
            view = memoryview(block)
            got += len(view)
            take(view)
        if got != size:
            raise StoreAway(f"{self._shown}/{self._key(key)}: {got} of {size} bytes came")

    def list(self, prefix: str) -> builtins.list[Object]:
        import obstore

        skip = len(self._prefix) + 1 if self._prefix else 0

        def read() -> builtins.list[Object]:
            found = []
            for part in obstore.list(self._store, prefix=self._key(prefix.rstrip("/"))):
                found += [Object(m["path"][skip:], int(m["size"]), m["last_modified"].timestamp()) for m in part]
            return found

        return sorted(self._do(prefix, read), key=lambda o: o.key)

    def delete(self, key: str) -> None:
        import obstore

        try:
            self._do(key, lambda: obstore.delete(self._store, self._key(key)))
        except FileNotFoundError:
            return

    def sweep(self, prefix: str) -> int:
        if self._account is None:
            return 0
        account = self._account
        return self._do(prefix, lambda: abort_uploads(account, self._key(prefix.rstrip("/")) + "/"))

    def sign(self, keys: builtins.list[str], valid_s: float) -> builtins.list[str]:
        from datetime import timedelta

        import obstore
        from obstore.exceptions import BaseError

        try:
            return builtins.list(
                obstore.sign(self._store, "GET", [self._key(k) for k in keys], timedelta(seconds=valid_s))
            )
        except (BaseError, TypeError, ValueError):
            return []  # a kind of store that signs nothing

    def another(self) -> Objects:
        return self

    def close(self) -> None:
        pass
