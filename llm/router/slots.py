"""Small numbers for replica names, so that sets of replicas are bit masks."""

from __future__ import annotations

from hashlib import blake2b


class Slots:
    """Gives each name the lowest free number and remembers a 64-bit hash of the name."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self.names: list[str | None] = []
        self.hashes: list[int] = []

    def __len__(self) -> int:
        """Slots ever used at once: the length of arrays indexed by slot."""
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __getitem__(self, name: str) -> int:
        return self._slots[name]

    def known(self) -> list[str]:
        """Names in the order in which they came."""
        return list(self._slots)

    def add(self, name: str) -> int:
        """The slot of `name`, new or not."""
        slot = self._slots.get(name)
        if slot is not None:
            return slot
        number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        if len(self._slots) < len(self.names):
            slot = self.names.index(None)
            self.names[slot], self.hashes[slot] = name, number
        else:
            slot = len(self.names)
            self.names.append(name)
            self.hashes.append(number)
        self._slots[name] = slot
        return slot

    def free(self, name: str) -> int:
        """Give the slot of `name` back. Raises KeyError."""
        slot = self._slots.pop(name)
        self.names[slot] = None
        return slot
