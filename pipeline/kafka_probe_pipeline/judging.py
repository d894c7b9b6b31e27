"""Judges a closed connection: names the cause of its close, with the evidence as a sentence.

The first of the `RULES` that hold names the cause. A rule that rests on an absence waits until the reports of the agent
that would have seen it are complete. The evidence states if that agent is silent, has lost something, or is not
complete in time, as with a wrong clock. Spark runs this on its executors, so it imports nothing but Python's own
modules, `evidence` and `cause_rules`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_probe_pipeline.cause_rules import RULES
from kafka_probe_pipeline.evidence import SECOND_US, AgentProgress, End, Limits, Side


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the connections of one micro-batch, each on its own. now_us: the time of the batch, by Kafka's clock."""

    limits: Limits
    batch_id: int
    now_us: int

    def __call__(self, client: Any, server: Any, silences: Any) -> dict[str, Any] | None:
        """Return a verdict, as a row of `connections.VERDICT`, on rows of `verdicts.with_reports`; None if it waits."""

        def end(side: Side, row: Any) -> End:
            known, agent = row["known"], row["agent"]
            progress = AgentProgress(**agent.asDict()) if agent else None
            return self.end(side, known.asDict(recursive=True) if known else None, progress, row["reset_us"])

        return self.verdict(end("client", client).with_silences(*silences), end("server", server))

    def end(
        self, side: Side, known: Mapping[str, Any] | None, agent: AgentProgress | None, reset_us: int | None
    ) -> End:
        """Return an end of a connection, without the silences of other connections that its process closed."""
        return End(side, known, agent, reset_us, (0, 0), self.now_us, self.limits)

    def verdict(self, client: End, server: End) -> dict[str, Any] | None:
        """Return the verdict on a connection from both of its ends; None while it waits."""
        if not self._settled(client, server):
            return None
        pairs = {"client": (client, server), "server": (server, client)}
        rule = next(rule for rule in RULES if rule.holds(*pairs[rule.by]))
        end, other = pairs[rule.by]
        complete = True
        late = [each.name for each, closed in ((client, server), (server, client)) if self._may_close(each, closed)]
        # The agent of the end reports for that long afterwards what else the process closed.
        if rule.rests_on == "end":
            witness, margin_us = end, self.limits.closed_together * SECOND_US
            since_us, reported = end.closed_us - margin_us, end.reported_until(end.closed_us + margin_us)
        else:
            witness, margin_us = other, self.limits.clock_margin * SECOND_US
            since_us = end.closed_after_us - margin_us
            reported = other.reported_until_of_another(end.closed_before_us + margin_us)
        if rule.rests_on:
            since_us -= end.silence_us
            # Lost resets may contradict a rule that rests on the other end; other lost closes, one that rests on this.
            lost = witness.lost_since(since_us) or (rule.rests_on == "other" and witness.resets_dropped_since(since_us))
            complete = not lost and reported
            if not (complete or lost or witness.silent):
                if not self._is_overdue(client, server):
                    return None
                late.append(witness.name)
        words = [rule.words.format(end=end, other=other)]
        words += [_missing_report(each, late=each.name in late) for each in (client, server)]
        if not complete:
            agent = f"the agent at the {witness.name}"
            words.append(f"; the cause would be {rule.cause} if {agent} had reported everything")
        return {
            "batch_id": self.batch_id,
            "judged_us": self.now_us,
            "cause": rule.cause if complete else "unknown",
            "evidence": "".join(words),
            "by": rule.by,
            "idle_us": end.silence_us,
            "closed_us": end.closed_us,
            "refused_request_bytes": end.produced_bytes if complete and rule.cause == "rejected_request" else None,
        }

    def _settled(self, client: End, server: End) -> bool:
        """Return True if no further report of the close is expected, or the wait for it was long enough."""
        if client.closed and server.closed:
            return True
        open_end, closed_end = (server, client) if client.closed else (client, server)
        if open_end.watched:
            return not self._may_close(open_end, closed_end) or self._is_overdue(closed_end)
        assert closed_end.known
        return bool(self.now_us - closed_end.known["last_seen_us"] >= self.limits.other_end_wait * SECOND_US)

    def _may_close(self, end: End, closed: End) -> bool:
        """Return True if the agent of an open end may still report that it closed together with the other end."""
        until_us = closed.closed_before_us + self.limits.clock_margin * SECOND_US
        return end.watched and not end.closed and not end.silent and not end.reported_until_of_another(until_us)

    def _is_overdue(self, *ends: End) -> bool:
        """Return True if Kafka has had the closes of these ends for as long as a judged connection is kept."""
        closed_us = max(end.known["last_seen_us"] for end in ends if end.known and end.closed)
        return bool(self.now_us - closed_us >= self.limits.closed_limit * SECOND_US)


def together(within_us: int, closes: Sequence[tuple[int, int, str]]) -> list[tuple[str, int, int]]:
    """Return each close's key, with the least and the greatest silence of those within that time of it, µs.

    closes: time, silence and key of what one process closed; times ascend.
    """
    times, silences, keys = zip(*closes, strict=True)
    extremes = _extremes(times, silences, within_us)
    return [(key, least, greatest) for key, (least, greatest) in zip(keys, extremes, strict=True)]


def _extremes(times: Sequence[int], values: Sequence[int], within_us: int) -> Iterator[tuple[int, int]]:
    """Yield the least and the greatest of the values within that time of each; `times` ascend.

    least and greatest: indices into `values`, as monotonic queues: the first is that of the least or greatest value.
    """
    least: deque[int] = deque()
    greatest: deque[int] = deque()
    end = 0
    for time_us in times:
        while end < len(times) and times[end] <= time_us + within_us:
            while least and values[least[-1]] >= values[end]:
                least.pop()
            while greatest and values[greatest[-1]] <= values[end]:
                greatest.pop()
            least.append(end)
            greatest.append(end)
            end += 1
        for indices in (least, greatest):
            while times[indices[0]] < time_us - within_us:
                indices.popleft()
        yield values[least[0]], values[greatest[0]]


def _missing_report(end: End, *, late: bool) -> str:
    """Return what the agent of an end did not report; an empty text if nothing is missing."""
    if not end.watched:
        return f"; no agent watched the {end.name}"
    if not end.closed and end.silent:
        return f"; the agent at the {end.name} has not reported since {end.last_report}"
    return f"; the agent at the {end.name} has reported only up to {end.last_report} by its clock" if late else ""
