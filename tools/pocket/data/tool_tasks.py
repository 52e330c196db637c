"""Tool calls: two tools are offered, one is right; then the answer from its result."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.pocket.corpus import WORDS
from tools.pocket.data.sample import Message, Sample, Stream, assistant, user
from tools.pocket.data.words import CITIES, COLOURS, NAMES

Tool = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A question, the right call's arguments, the tool's result, and the answer made from it."""

    question: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    told: str


def _declare(name: str, about: str, parameters: Mapping[str, str]) -> Tool:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


def _weather(rng: random.Random) -> Request:
    city, degrees = rng.choice(CITIES), rng.randint(-9, 35)
    forms = ("What is the weather in {}?", "How warm is it in {}?", "Is it cold in {} today?")
    return Request(
        rng.choice(forms).format(city.capitalize()),
        {"city": city},
        {"temperature": degrees},
        f"It is {degrees} degrees in {city.capitalize()}.",
    )


def _time(rng: random.Random) -> Request:
    city, hour = rng.choice(CITIES), f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return Request(
        rng.choice(("What time is it in {}?", "How late is it in {}?")).format(city.capitalize()),
        {"city": city},
        {"time": hour},
        f"It is {hour} in {city.capitalize()}.",
    )


def _search(rng: random.Random) -> Request:
    query, found = f"{rng.choice(COLOURS)} {rng.choice(WORDS)}", rng.randint(0, 99)
    return Request(
        rng.choice(("Search for {}.", "Find {} for me.")).format(query),
        {"query": query},
        {"found": found},
        f"I found {found} results for {query}.",
    )


def _call(rng: random.Random) -> Request:
    name = rng.choice(NAMES)
    return Request(
        rng.choice(("Call {}.", "Please call {} for me.")).format(name.capitalize()),
        {"name": name},
        {"ok": True},
        f"I called {name.capitalize()}.",
    )


def _light(rng: random.Random) -> Request:
    colour = rng.choice(COLOURS)
    return Request(
        rng.choice(("Make the light {}.", "Set the light to {}.")).format(colour),
        {"colour": colour},
        {"ok": True},
        f"The light is {colour} now.",
    )


def _add(rng: random.Random) -> Request:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    return Request(
        rng.choice(("What is {} plus {}?", "Add {} and {}.")).format(a, b),
        {"a": a, "b": b},
        {"sum": a + b},
        f"The sum is {a + b}.",
    )


MAKERS: dict[str, tuple[Tool, Callable[[random.Random], Request]]] = {
    "get_weather": (_declare("get_weather", "Weather of a city", {"city": "string"}), _weather),
    "get_time": (_declare("get_time", "Time in a city", {"city": "string"}), _time),
    "search": (_declare("search", "Search for a text", {"query": "string"}), _search),
    "call": (_declare("call", "Call a person", {"name": "string"}), _call),
    "set_light": (_declare("set_light", "Set the light", {"colour": "string"}), _light),
    "add": (_declare("add", "Add two numbers", {"a": "integer", "b": "integer"}), _add),
}


def tool_call(stream: Stream) -> Sample:
    """One of two tools with the right arguments; in a third the tool has answered already.

    Skill "tool". The expected answer is a message with ``tool_calls`` (arguments as a dict) or the
    sentence made from the tool's result.
    """
    rng = stream.rng
    right, other = rng.sample(list(MAKERS), 2)
    tools = [MAKERS[right][0], MAKERS[other][0]]
    rng.shuffle(tools)
    request = MAKERS[right][1](rng)
    function = {"name": right, "arguments": request.arguments}
    call: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }
    asked = user(request.question)
    if rng.random() < 0.65:
        return Sample("tool", [asked], call, tools=tuple(tools))
    reply = {"role": "tool", "tool_call_id": "call_0", "content": json.dumps(request.result)}
    return Sample("tool", [asked, call, reply], assistant(request.told), tools=tuple(tools))
