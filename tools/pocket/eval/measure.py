"""Asking all questions of the table and adding up the marks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tools.pocket.eval.client import Answer, Client, Question, questions
from tools.pocket.eval.rows import Row
from tools.pocket.eval.scoring import Marks, marks
from tools.pocket.eval.talk import sensible

PARALLEL = 4
ACCEPT_BAR = 3.0
# Short answers cap the accept length, because their end counts.
LONG_ANSWER = 20


@dataclass
class Result:
    """A measured line: ``value`` = right / total, in the row's unit; some wrong answers to show."""

    name: str
    what: str
    bar: float | None
    right: float = 0.0
    total: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def value(self) -> float:
        return self.right / self.total if self.total else 0.0

    @property
    def met(self) -> bool:
        return self.bar is None or self.value >= self.bar


def score(question: Question, answer: Answer) -> Marks:
    if "pattern" in question.sample.detail:
        reply = answer.message.get("content") or ""
        return int(sensible(reply, question.sample.detail["pattern"])), 1
    return marks(answer.message, question.wanted, question.sample.score)


def measure(client: Client, row: Row, quick: bool, greedy: bool = False) -> Result:
    """Ask a row's questions with the shipped sampling settings, or greedily."""
    result = Result(row.name, row.what, row.bar)
    asked = [q for i in range(row.quick if quick else row.full) for q in questions(row.make(i), i)]
    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = pool.map(lambda question: client.ask(question, greedy), asked)
        for question, answer in zip(asked, answers, strict=True):
            right, total = score(question, answer)
            result.right += right
            result.total += total
            if right < total:
                wanted, got = (_shown(m) for m in (question.wanted, answer.message))
                result.wrong.append(f"{got!r} for {wanted!r}")
    return result


def _shown(message: dict[str, object]) -> str:
    calls = message.get("tool_calls")
    return str(calls) if calls else str(message.get("content") or "")


def accept_lengths(client: Client, rows: Sequence[Row], quick: bool) -> list[Result]:
    """Tokens for each verify step under greedy decoding: over everything, and over long answers."""
    everything = Result("MTP, all answers", "tokens a step of 4", None)
    long = Result("MTP, answers of 20 tokens and more", "tokens a step of 4", ACCEPT_BAR)
    asked = [
        q
        for row in rows
        for i in range(row.quick if quick else max(row.quick, row.full // 5))
        for q in questions(row.make(i), i)
    ]
    with ThreadPoolExecutor(PARALLEL) as pool:
        for answer in pool.map(lambda q: client.ask(q, greedy=True), asked):
            for result in (everything, long) if answer.tokens >= LONG_ANSWER else (everything,):
                result.right += answer.tokens
                result.total += answer.verify_steps
    return [long, everything]


def lines(results: Sequence[Result]) -> list[str]:
    """The table as Markdown."""
    table = ["| skill | measured | bar | met | of |", "|---|---|---|---|---|"]
    for result in results:
        accept = result.what.startswith("tokens")
        value = f"{result.value:.2f}" if accept else f"{100 * result.value:.1f} %"
        bar = "reported"
        if result.bar is not None:
            bar = f"{result.bar:.1f}" if accept else f"{100 * result.bar:.0f} %"
        met = "" if result.bar is None else "yes" if result.met else "no"
        of = f"{result.total} {'steps' if accept else result.what}"
        table.append(f"| {result.name} | {value} | {bar} | {met} | {of} |")
    return table
