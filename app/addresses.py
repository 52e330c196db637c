"""Which hosts and network addresses the gateway may fetch media from.

A host name is resolved once, every address it has is checked, and the connection goes to a checked
address, so that a name cannot change its meaning between the check and the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from app.settings.gateway import FetchSettings

Resolver = Callable[[str, int], Awaitable[list[str]]]
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Refused(ValueError):
    """A URL that may not be fetched. `reason` completes "the URL ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def is_public(address: str) -> bool:
    """Whether an address is reachable from anywhere: not private, loopback, link-local, reserved.

    An IPv4 address inside an IPv6 one (mapped, 6to4, Teredo, NAT64) is judged too.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner: list[Any] = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        if found in _NAT64:
            inner.append(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
        embedded = [part for part in inner if part is not None]
        if embedded:
            return all(is_public(str(part)) for part in embedded)
    return found.is_global and not found.is_multicast


def parse_url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """A URL with a scheme, relative to `base` where one is given. Raises `Refused`."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
    except (httpx.InvalidURL, ValueError):
        raise Refused("is not valid") from None
    if not url.scheme:
        raise Refused("needs a scheme and a host")
    return url


def port_of(url: httpx.URL) -> int:
    """The port that a URL means."""
    return url.port or _DEFAULT_PORTS.get(url.scheme, 0)


class Guard:
    """Checks URLs against the settings and turns them into addresses to connect to."""

    def __init__(self, settings: FetchSettings, resolve: Resolver | None = None) -> None:
        self._settings = settings
        self._resolve = resolve or _system_resolver
        self._private = {host.lower() for host in settings.private_hosts}
        self._allowed = (
            None
            if settings.allowed_hosts is None
            else {host.lower() for host in settings.allowed_hosts}
        )

    async def addresses(self, url: httpx.URL) -> list[str]:
        """The addresses to connect to for `url`, checked. Raises `Refused`."""
        settings = self._settings
        if url.scheme not in settings.schemes:
            schemes = " or ".join(f"{scheme}://" for scheme in settings.schemes)
            raise Refused(f"must begin with {schemes}")
        if url.userinfo:
            raise Refused("holds a user name or password, which is not accepted")
        host, port = url.raw_host.decode("ascii").lower().rstrip("."), port_of(url)
        if not host:
            raise Refused("has no host")
        trusted = host in self._private or f"{host}:{port}" in self._private
        if self._allowed is not None and not trusted and not self._listed(host):
            raise Refused("points to a host that is not allowed here")
        if port not in settings.ports and f"{host}:{port}" not in self._private:
            ports = ", ".join(map(str, settings.ports))
            raise Refused(f"points to a port that is not allowed here (allowed: {ports})")
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise Refused("points to a host name that does not resolve") from None
        if not found:
            raise Refused("points to a host name that does not resolve")
        # One bad address is enough: a name that mixes public and private addresses is an attack
        # or a mistake.
        open_to_all = trusted or settings.allow_private_networks
        if not open_to_all and not all(map(is_public, found)):
            raise Refused("points to an address that is not public")
        return found

    def _listed(self, host: str) -> bool:
        allowed = self._allowed or set()
        return host in allowed or any(
            entry.startswith(".") and host.endswith(entry) for entry in allowed
        )


async def _system_resolver(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
