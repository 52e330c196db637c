"""From media items to embeddings: fetch, digest, look up, encode, all items of a request at once.

An item that occurs twice in a request is fetched once; one that is in the node's store goes to the
engine undecoded; one that several requests wait for is decoded and encoded once. The first failure
cancels the rest of the request's work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.chat import MediaItem
from app.clips import ClipEncoder, Lookup
from app.errors import ApiError, bad_request
from app.inline import Fetches, read_item
from app.item_options import ItemOptions, OptionRules
from app.media_budget import MediaBudget
from app.progress import Board, Progress
from app.retry import first_failure, twice
from app.stages import BadMedia, RowsGone, StageError, Stages
from encoders.digest import media_digest
from encoders.embedding import Embedding, RowsArray
from encoders.single_flight import SingleFlight
from encoders.store import Lease, RowsLost, RowsReader, StoreOptions
from encoders.store.watch import Watch

logger = logging.getLogger(__name__)

# Encodes of an item whose rows are evicted each time before they can be read.
_VALUE_TRIES = 3
# Hashing more bytes than this happens in a thread.
_HASH_IN_PLACE = 1 << 18


@dataclass
class _Work:
    """What one request has begun: downloads by source, encodes by digest. `held`: its bytes."""

    group: asyncio.TaskGroup
    progress: Progress | None
    reads: dict[tuple[str, str, tuple[str, ...]], asyncio.Task[bytes]] = field(default_factory=dict)
    encodes: dict[str, asyncio.Task[Embedding]] = field(default_factory=dict)
    held: int = 0


class MediaEncoder:
    """Encodes the media of requests with the stages.

    `identity` names the checkpoint and how it is run: it is part of every digest, so that two
    models never share an embedding. `interleave` is the family's rule for a clip's sound, see
    `encoders.video_layout`. `store`: the node's store; None = every item is encoded.
    `parts_in_work`: parts of one long clip that are decoded or encoded at once. `budget` counts the
    bytes of all requests.
    """

    def __init__(
        self,
        stages: Stages,
        fetcher: Fetches,
        rules: OptionRules,
        identity: str,
        *,
        interleave: int = 0,
        max_item_bytes: int,
        timeout_s: float,
        store: StoreOptions | None = None,
        parts_in_work: int = 4,
        budget: MediaBudget | None = None,
    ) -> None:
        self._stages = stages
        self._fetcher = fetcher
        self._rules = rules
        self._identity = identity
        self._max_item_bytes = max_item_bytes
        self._budget = budget or MediaBudget()
        self._timeout_s = timeout_s
        self._reader = RowsReader(store)
        self._flights: SingleFlight[Embedding] = SingleFlight(BadMedia)
        self._watch = Watch(store, self._reader.store, self._flights)
        self._adoptions: set[asyncio.Task[None]] = set()
        self.board = Board()
        self._clips = ClipEncoder(
            stages,
            Lookup(self._find, self._load),
            self.board,
            identity,
            interleave=interleave,
            in_work=parts_in_work,
        )

    async def encode(
        self,
        items: Sequence[MediaItem],
        by_value: bool = False,
        progress: Progress | None = None,
    ) -> list[Embedding]:
        """The embeddings of `items`, in order. Raises `ApiError` or `StageError`.

        Their rows are references where the store keeps them, which pin nothing: `by_value` is for
        requests whose references were evicted before the engine had opened them. `progress` is told
        what to follow.
        """
        if not items:
            return []
        self._watch.start()
        find = self._value if by_value else self._item
        work: _Work | None = None
        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as group:
                work = _Work(group, progress)
                tasks = [group.create_task(find(item, work)) for item in items]
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        except TimeoutError:
            raise ApiError(
                504,
                f"the media of the request took longer than {self._timeout_s:g} seconds",
                code="timeout",
            ) from None
        finally:
            if work is not None:
                self._budget.give(work.held)
        return [task.result() for task in tasks]

    async def _item(self, item: MediaItem, work: _Work) -> Embedding:
        options = self._rules.options(item)
        data = await self._read(item, work)
        digest = await self._digest(item.modality, data, options.fields())
        if work.progress is not None:
            work.progress.follow(item.where, digest)
        if digest not in work.encodes:
            encode = self._encode(item, data, digest, options)
            work.encodes[digest] = work.group.create_task(encode)
        return await work.encodes[digest]

    async def _read(self, item: MediaItem, work: _Work) -> bytes:
        key = (item.encoding, item.source, item.pictures)
        if key not in work.reads:
            work.reads[key] = work.group.create_task(self._fetch(item, work))
        return await work.reads[key]

    async def _fetch(self, item: MediaItem, work: _Work) -> bytes:
        data = await read_item(item, self._fetcher, self._max_item_bytes)
        self._budget.keep(len(data))
        work.held += len(data)
        return data

    async def _digest(self, kind: str, data: bytes, options: Mapping[str, Any]) -> str:
        if len(data) <= _HASH_IN_PLACE:
            return media_digest(kind, data, options, self._identity)
        return await asyncio.to_thread(media_digest, kind, data, options, self._identity)

    async def _value(self, item: MediaItem, work: _Work) -> Embedding:
        """An item's embedding with its rows as an array."""
        for _ in range(_VALUE_TRIES):
            embedding = await self._item(item, work)
            try:
                return replace(embedding, rows=await self._load(embedding))
            except RowsLost:
                work.encodes.pop(embedding.digest, None)
        raise RowsGone("embedding store", "rows are evicted faster than they can be read")

    async def _load(self, embedding: Embedding) -> RowsArray:
        """Raises `RowsLost`."""
        rows = await self._reader.open(embedding)
        if not isinstance(rows, Lease):
            return rows
        array = rows.rows()
        self._reader.close([rows])
        return array

    async def _encode(
        self, item: MediaItem, data: bytes, digest: str, options: ItemOptions
    ) -> Embedding:
        found = self._find(digest)
        if found is not None:
            return found
        try:
            return await self._flights.run(
                digest, lambda: self._compute(item.modality, data, digest, options)
            )
        except BadMedia as failure:
            raise bad_request(
                f"{item.where}: {failure.reason}", code="invalid_media", param=item.where
            ) from None

    def _find(self, digest: str) -> Embedding | None:
        store = self._reader.store
        return store.get(digest) if store is not None else None

    async def _compute(
        self, modality: str, data: bytes, digest: str, options: ItemOptions
    ) -> Embedding:
        """Raises `BadMedia` or `StageError`."""
        if modality == "image":
            return await twice(
                lambda: self._stages.images.encode_image(data, digest, options.encode)
            )
        if modality == "audio":
            return await self._sound(data, digest)
        # Another node's store may have it: that of the replica which is asked for this digest.
        found = await twice(lambda: self._stages.images.find(digest))
        return found or await self._clip(data, digest, options)

    async def _sound(self, data: bytes, digest: str) -> Embedding:
        # Asked first, because the replica that decodes is not the one that remembers.
        found = await twice(lambda: self._stages.audio.find(digest))
        if found is not None:
            return found
        sound = await twice(lambda: self._stages.video.decode_sound(data))
        return await twice(
            lambda: self._stages.audio.encode_samples(sound.samples, sound.rate, digest)
        )

    async def _clip(self, data: bytes, digest: str, options: ItemOptions) -> Embedding:
        began = time.perf_counter()
        composed = await self._clips.encode(data, digest, options)
        return await self._keep_clip(composed, time.perf_counter() - began)

    async def _keep_clip(self, clip: Embedding, seconds: float) -> Embedding:
        """Put a clip into this node's store, and let the node that is asked for it know."""
        store = self._reader.store
        kept = await asyncio.to_thread(store.put, clip, seconds) if store is not None else None
        if kept is None:
            return clip
        adoption = asyncio.create_task(self._offer(kept))
        self._adoptions.add(adoption)
        adoption.add_done_callback(self._adoptions.discard)
        return kept

    async def _offer(self, kept: Embedding) -> None:
        try:
            await self._stages.images.adopt(kept)
        except StageError as failure:  # the clip is only encoded once more on another node
            logger.info("a clip was not adopted: %s", failure)

    def report(self) -> dict[str, Any]:
        """Bytes held, encodes in flight, leases and the store's counters, as plain data."""
        flights = {"single_flight": self._flights.report()}
        own = {"held_media_bytes": self._budget.held, "violations": self._watch.violations}
        return {**flights, **self._reader.report(), **own}
