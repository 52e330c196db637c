"""Guarded download of remote media.

Every hop of a redirect passes the same guard as the first URL (`app.addresses`), connects to an
address that was checked, and counts bytes while they arrive. Nothing is shared between fetches: no
cookies, no kept connections, no proxies from the environment, no local files.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from app.addresses import Guard, Refused, Resolver, parse_url
from app.errors import megabytes
from app.media_budget import BudgetFull, MediaBudget
from app.settings.gateway import FetchSettings

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"user-agent": "omniserve", "accept": "*/*", "accept-encoding": "identity"}


class FetchError(Exception):
    """A remote item that cannot be used. `reason` never holds the URL; `status` is for the client.

    400: the URL, the server or the network is at fault; 413: too many bytes; 503: too many bytes
    beside those of other requests.
    """

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Fetcher:
    """Downloads media within the limits of the settings.

    `budget`: counts what has arrived of downloads in progress; who asked counts what is done.
    """

    def __init__(
        self,
        settings: FetchSettings,
        resolve: Resolver | None = None,
        budget: MediaBudget | None = None,
    ) -> None:
        self._settings = settings
        self._budget = budget or MediaBudget()
        self._guard = Guard(settings, resolve)
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        """The body behind `url`. Raises `FetchError`."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._follow(url, max_bytes)
        except TimeoutError:
            raise FetchError(
                f"the URL did not deliver within {self._settings.timeout_s:g} seconds"
            ) from None
        except Refused as refused:
            raise FetchError(f"the URL {refused.reason}") from None
        except httpx.HTTPError as failure:
            raise FetchError(f"the download failed ({type(failure).__name__})") from None

    async def _follow(self, text: str, max_bytes: int) -> bytes:
        url = parse_url(text)
        for _ in range(self._settings.max_redirects + 1):
            async with self._open(url) as response:
                if response.status_code not in _REDIRECTS:
                    return await self._read(response, max_bytes)
                target = response.headers.get("location")
            if not target:
                raise FetchError("the server redirects to nowhere")
            url = parse_url(target, base=url)
        raise FetchError(f"the URL redirects more than {self._settings.max_redirects} times")

    @asynccontextmanager
    async def _open(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        """One request to the first checked address that answers; the body is not read yet."""
        failure: httpx.TransportError | None = None
        for address in await self._guard.addresses(url):
            async with httpx.AsyncHTTPTransport(
                verify=self._tls_context(), trust_env=False
            ) as transport:
                try:
                    response = await transport.handle_async_request(self._request(url, address))
                except (httpx.ConnectError, httpx.ConnectTimeout) as refused:
                    failure = refused
                    continue
                try:
                    yield response
                finally:
                    await response.aclose()
                return
        if failure is not None:
            raise failure

    def _request(self, url: httpx.URL, address: str) -> httpx.Request:
        timeout = httpx.Timeout(self._settings.timeout_s, connect=self._settings.connect_timeout_s)
        return httpx.Request(
            "GET",
            url.copy_with(host=address),
            headers={**_HEADERS, "host": url.netloc.decode("ascii")},
            # The certificate is checked against the name, not against the address.
            extensions={
                "sni_hostname": url.raw_host.decode("ascii"),
                "timeout": timeout.as_dict(),
            },
        )

    async def _read(self, response: httpx.Response, max_bytes: int) -> bytes:
        """The body of a final answer, counted while it arrives."""
        _check_head(response, max_bytes)
        data = bytearray()
        taken = 0
        try:
            async for chunk in response.aiter_raw():
                self._budget.take(len(chunk))
                taken += len(chunk)
                data += chunk
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
        except BudgetFull:
            raise FetchError("the server holds as much media as it may; try later", 503) from None
        finally:
            self._budget.give(taken)
        if not data:
            raise FetchError("the server sent an empty body")
        return bytes(data)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        return self._tls


def _check_head(response: httpx.Response, max_bytes: int) -> None:
    """Whether the body of a final answer is worth reading. Raises `FetchError`."""
    if response.status_code != 200:
        raise FetchError(f"the server answered with status {response.status_code}")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise FetchError("the server compresses its answer although it was asked not to")
    length = response.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> FetchError:
    return FetchError(f"the item is larger than the limit of {megabytes(max_bytes)}", 413)
