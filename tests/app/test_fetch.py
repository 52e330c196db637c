"""The guarded fetch, against a real server on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.addresses import Guard, Refused, is_public, parse_url
from app.fetch import Fetcher, FetchError
from app.media_budget import MediaBudget
from app.settings.gateway import FetchSettings
from tests.app.raw_server import Server, Write, ok


def redirect(to: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()


async def anywhere(host: str, port: int) -> list[str]:
    """A resolver that knows public names, private ones, and this machine."""
    known = {
        "public.example": ["93.184.216.34"],
        "private.example": ["10.0.0.7"],
        "mixed.example": ["93.184.216.34", "127.0.0.1"],
        "nothing.example": [],
    }
    if host in known:
        return known[host]
    if host in ("local.example", "other.example"):
        return ["127.0.0.1"]
    loop = asyncio.get_running_loop()
    return [str(entry[4][0]) for entry in await loop.getaddrinfo(host, port)]


def fetcher(server: Server, budget: MediaBudget | None = None, **changes: Any) -> Fetcher:
    options: dict[str, Any] = {
        "private_hosts": [f"127.0.0.1:{server.port}", f"local.example:{server.port}"],
        "timeout_s": 5.0,
    }
    return Fetcher(FetchSettings(**{**options, **changes}), anywhere, budget)


async def failure(fetch: Fetcher, url: str, max_bytes: int = 1000) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetch.fetch(url, max_bytes)
    assert len(caught.value.reason) < 200
    return caught.value


async def test_a_plain_download(server: Server) -> None:
    server.answers["/a.png"] = ok(b"picture")
    url = f"http://local.example:{server.port}/a.png"
    assert await fetcher(server).fetch(url, 1000) == b"picture"
    head = server.heads[0].lower()
    assert f"host: local.example:{server.port}" in head
    assert "accept-encoding: identity" in head
    assert "cookie" not in head


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/secret",
        "http://localhost:{port}/secret",
        "http://[::1]:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "http://127.1:{port}/secret",
        "http://2130706433:{port}/secret",
        "http://0x7f000001:{port}/secret",
        "http://0:{port}/secret",
        "http://127.0.0.1.:{port}/secret",
        "http://other.example:{port}/secret",
    ],
)
async def test_names_of_this_machine_are_refused(server: Server, url: str) -> None:  # case 18
    server.answers["/secret"] = ok(b"secret")
    guarded = fetcher(server, private_hosts=[], ports=[80, 443, server.port])
    found = await failure(guarded, url.format(port=server.port))
    assert found.status == 400
    assert not server.heads


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "must begin with http:// or https://"),  # case 20
        ("ftp://public.example/a", "must begin with http:// or https://"),
        ("/etc/passwd", "needs a scheme and a host"),
        ("http://", "has no host"),
        ("http:///etc/passwd", "has no host"),
        ("http://a b c/", "host"),
        ("http://[::1/", "not valid"),
        ("http://public.example:99999/", "port"),
        ("http://public.example:22/", "port that is not allowed"),
        ("http://user:word@public.example/", "user name or password"),
        ("http://private.example/", "not public"),
        ("http://mixed.example/", "not public"),
        ("http://nothing.example/", "does not resolve"),
        ("http://169.254.169.254/latest/meta-data", "not public"),
        ("http://10.0.0.1/", "not public"),
    ],
)
async def test_refused_urls(server: Server, url: str, reason: str) -> None:  # case 18
    found = await failure(fetcher(server), url)
    assert found.status == 400
    assert reason in found.reason
    assert "passwd" not in found.reason


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest",
        "http://127.0.0.1:1/",
        "http://private.example/",
        "file:///etc/passwd",
        "//10.0.0.1/x",
        "http://[::1/",
    ],
)
async def test_every_redirect_is_checked(server: Server, target: str) -> None:  # case 18
    server.answers["/go"] = redirect(target)
    found = await failure(fetcher(server), f"http://127.0.0.1:{server.port}/go")
    assert found.status == 400
    assert len(server.heads) == 1


async def test_redirects_are_followed_to_a_limit(server: Server) -> None:  # case 18
    base = f"http://127.0.0.1:{server.port}"
    server.answers["/loop"] = redirect(f"{base}/loop")
    found = await failure(fetcher(server, max_redirects=3), f"{base}/loop")
    assert found.reason == "the URL redirects more than 3 times"
    assert len(server.heads) == 4


@pytest.mark.parametrize(
    "target", ["b.png", "./b.png", "/dir/b.png", "?x", "//local.example:{port}/dir/b.png"]
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_relative_locations(server: Server, target: str, status: int) -> None:  # case 18
    server.answers["/dir/a.png"] = redirect(target.format(port=server.port), status)
    server.answers["/dir/b.png"] = server.answers["/dir/a.png?x"] = ok(b"there")
    url = f"http://127.0.0.1:{server.port}/dir/a.png"
    assert await fetcher(server).fetch(url, 1000) == b"there"


async def test_a_redirect_without_a_target(server: Server) -> None:
    server.answers["/go"] = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n"
    found = await failure(fetcher(server), f"http://127.0.0.1:{server.port}/go")
    assert found.reason == "the server redirects to nowhere"


async def test_a_name_is_resolved_once_per_hop(server: Server) -> None:
    """A name that turns private after the check (rebinding) changes nothing."""
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    server.answers["/"] = ok(b"first")
    settings = FetchSettings(private_hosts=[f"rebind.example:{server.port}"])
    url = f"http://rebind.example:{server.port}/"
    assert await Fetcher(settings, rebinding).fetch(url, 100) == b"first"
    assert asked == ["rebind.example"]


async def test_the_next_address_is_tried(server: Server) -> None:
    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    server.answers["/"] = ok(b"found")
    settings = FetchSettings(private_hosts=[f"two.example:{server.port}"], connect_timeout_s=1.0)
    assert await Fetcher(settings, two).fetch(f"http://two.example:{server.port}/", 9) == b"found"


@pytest.mark.parametrize("size", [99, 100, 101])
@pytest.mark.parametrize("declared", [True, False])
async def test_size_limit(server: Server, size: int, declared: bool) -> None:  # cases 16, 17
    body = b"x" * size
    server.answers["/a"] = ok(body) if declared else b"HTTP/1.0 200 OK\r\n\r\n" + body
    url = f"http://127.0.0.1:{server.port}/a"
    if size <= 100:
        assert await fetcher(server).fetch(url, 100) == body
    else:
        found = await failure(fetcher(server), url, 100)
        assert (found.status, "100 bytes" in found.reason) == (413, True)


async def test_an_endless_body_is_cut_off(server: Server) -> None:  # case 17
    sent = 0

    async def endless(write: Write) -> None:
        nonlocal sent
        await write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            sent += 10_000
            await write(b"x" * 10_000)

    server.answers["/a"] = endless
    found = await failure(fetcher(server), f"http://127.0.0.1:{server.port}/a", 100_000)
    assert found.status == 413
    assert sent < 20_000_000


async def test_a_slow_server_is_given_up(server: Server) -> None:
    async def slow(write: Write) -> None:
        await write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(100):
            await write(b"x")
            await asyncio.sleep(0.05)

    server.answers["/a"] = slow
    began = asyncio.get_running_loop().time()
    slow_fetch = fetcher(server, timeout_s=0.3)
    found = await failure(slow_fetch, f"http://127.0.0.1:{server.port}/a")
    assert found.reason == "the URL did not deliver within 0.3 seconds"
    assert asyncio.get_running_loop().time() - began < 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 206 Partial\r\ncontent-length: 1\r\n\r\nx", "status 206"),
        (ok(b""), "empty body"),
        (ok(b"x", "content-encoding: gzip"), "compresses"),
        (b"not http at all\r\n\r\n", "download failed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort", "download failed"),
        (b"", "download failed"),
    ],
)
async def test_bad_answers(server: Server, answer: bytes, reason: str) -> None:  # case 64
    server.answers["/a"] = answer
    found = await failure(fetcher(server), f"http://127.0.0.1:{server.port}/a")
    assert (found.status, reason in found.reason) == (400, True), found.reason


async def test_no_server(server: Server) -> None:
    unused = fetcher(server, private_hosts=["127.0.0.1:9"])
    assert "download failed" in (await failure(unused, "http://127.0.0.1:9/")).reason


async def test_nothing_is_kept_between_fetches(server: Server) -> None:
    server.answers["/a"] = ok(b"x", "set-cookie: id=1; path=/")
    fetch = fetcher(server)
    for _ in range(2):
        await fetch.fetch(f"http://127.0.0.1:{server.port}/a", 10)
    assert all("cookie" not in head.lower() for head in server.heads)


@pytest.mark.parametrize(
    ("allowed", "host", "accepted"),
    [
        (None, "public.example", True),
        (["public.example"], "public.example", True),
        (["PUBLIC.example"], "public.EXAMPLE", True),
        ([".example"], "public.example", True),
        (["example"], "public.example", False),
        (["other.example"], "public.example", False),
        ([], "public.example", False),  # an empty list allows nothing
    ],
)
async def test_allowed_hosts(allowed: list[str] | None, host: str, accepted: bool) -> None:
    guard = Guard(FetchSettings(allowed_hosts=allowed), anywhere)
    url = parse_url(f"http://{host}/")
    if accepted:
        assert await guard.addresses(url) == ["93.184.216.34"]
    else:
        with pytest.raises(Refused, match="not allowed"):
            await guard.addresses(url)


async def test_private_networks_can_be_opened() -> None:
    url = parse_url("http://private.example/")
    for settings in (
        FetchSettings(allow_private_networks=True),
        FetchSettings(private_hosts=["private.example"]),
        FetchSettings(private_hosts=["private.example:80"]),
    ):
        assert await Guard(settings, anywhere).addresses(url) == ["10.0.0.7"]
    with pytest.raises(Refused):
        await Guard(FetchSettings(private_hosts=["private.example:81"]), anywhere).addresses(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        "not an address",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)
