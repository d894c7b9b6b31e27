"""Verdicts: closed connections in, each with the cause of its end and the evidence for it in words.

`rules` is the table: of the rules that hold, the first names the cause. What rests on an absence waits until the agent
that would have seen it has sent everything, and says so where that agent is silent. Client ids, topics and ports name
no cause. Pure functions of DataFrames; this room never reads or writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.evidence import (
    BROKER,
    CLIENT,
    ENDS,
    OTHER,
    SECOND_US,
    End,
    asked,
    authenticating,
    closed,
    closed_before,
    closed_itself,
    closed_us,
    closed_with_others,
    complete,
    every,
    exited,
    first,
    gathered,
    got_no_answer,
    got_reset,
    held,
    refused,
    sent_reset,
    settled,
    silence_us,
    silent,
    some,
    stopped_listening,
    unanswered,
    was_active,
    was_idle,
    watched,
)
from kafka_probe_pipeline.wording import api, count, process, said, seconds, silence


@dataclass(frozen=True, slots=True)
class Rule:
    """If `holds`, the cause is named by the word of the end `by`. `words` are the evidence.

    `rests_on` is the end whose agent would have told of what speaks against it; None: nothing could.
    """

    cause: str
    holds: Column
    by: End
    words: Column
    rests_on: End | None = None


def rules(config: Config) -> tuple[Rule, ...]:
    """All rules in their order."""
    return (
        *(
            Rule(
                "auth_failure", refused(end), end, said("the credentials were refused, error ", end.close("auth_error"))
            )
            for end in ENDS
        ),
        *(
            Rule(
                "middlebox_reset",
                every(got_reset(end), watched(other), ~sent_reset(other), ~closed_before(other, config)),
                end,
                said(f"the {end.who} received an RST after ", silence(end), f" that the {other.who}'s host never sent"),
                rests_on=other,
            )
            for end, other in OTHER.items()
        ),
        *(
            Rule(
                "middlebox_silent_drop",
                every(got_no_answer(end, config), held(other)),
                end,
                said(
                    f"what the {end.who} sent after ",
                    silence(end),
                    " was never acknowledged (",
                    count(end, "unacked_bytes"),
                    " bytes, ",
                    count(end, "unanswered_retransmits"),
                    f" retransmissions), yet the {other.who} held on",
                ),
                rests_on=other,
            )
            for end, other in OTHER.items()
        ),
        *(
            Rule(
                "unknown",
                every(got_no_answer(end, config), ~held(other)),
                end,
                said(
                    f"what the {end.who} sent after ",
                    silence(end),
                    f" was never acknowledged; whether the {other.who} was still there is not known",
                ),
            )
            for end, other in OTHER.items()
        ),
        *(
            Rule(
                "process_exit",
                every(closed_itself(end), exited(end)),
                end,
                said(f"the {end.who}'s process ", process(end), " ended without closing its socket"),
            )
            for end in (BROKER, CLIENT)
        ),
        Rule(
            "broker_shutdown",
            every(closed_itself(BROKER), stopped_listening(config)),
            BROKER,
            said("the broker had stopped listening ", seconds(BROKER.close("listener_closed_us")), " before"),
        ),
        *(
            Rule(
                "auth_failure",
                every(first(end), authenticating(end, config)),
                end,
                said(f"the {end.who} closed ", silence(end, of="moment"), " after ", end.close("last_api")),
            )
            for end in (BROKER, CLIENT)
        ),
        Rule(
            "rejected_request",
            every(first(BROKER), unanswered(config)),
            BROKER,
            said(
                "the broker closed ",
                silence(BROKER, of="moment"),
                " after ",
                api(BROKER),
                " without answering it (",
                asked(BROKER),
                " requests without a response)",
            ),
        ),
        Rule(
            "broker_idle_limit",
            every(first(BROKER), was_idle(BROKER, config)),
            BROKER,
            said("the broker closed after ", silence(BROKER), ", with no request open"),
        ),
        Rule(
            "normal",
            every(first(CLIENT), CLIENT.close("owner_ended")),
            CLIENT,
            said("the client closed, and its process ", process(CLIENT), " ended within a second"),
        ),
        Rule(
            "normal",
            every(first(CLIENT), some(was_active(CLIENT, config), CLIENT.close("last_api") == "LeaveGroup")),
            CLIENT,
            said("the client closed ", silence(CLIENT, of="moment"), " after its last exchange, ", api(CLIENT)),
        ),
        Rule(
            "unknown",
            every(first(CLIENT), asked(CLIENT) > 0),
            CLIENT,
            said("the client gave up on ", asked(CLIENT), " requests, unanswered for ", silence(CLIENT, of="moment")),
        ),
        Rule(
            "normal",
            every(first(CLIENT), closed_with_others(config)),
            CLIENT,
            said(
                "the client closed it together with others, idle from ",
                seconds(F.col("least_age_us")),
                " to ",
                seconds(F.col("greatest_age_us")),
                ": it was closed as a whole",
            ),
        ),
        Rule(
            "client_idle_limit",
            every(first(CLIENT), was_idle(CLIENT, config)),
            CLIENT,
            said("the client closed after ", silence(CLIENT), ", with no request open"),
            rests_on=CLIENT,
        ),
        Rule(
            "unknown",
            every(closed_itself(CLIENT), closed_itself(BROKER)),
            CLIENT,
            said("both ends closed before either heard of the other"),
        ),
        Rule(
            "unknown",
            every(first(BROKER)),
            BROKER,
            said("the broker closed ", silence(BROKER, of="moment"), " after the last exchange: too soon for a limit"),
        ),
        *(
            Rule(
                "unknown",
                closed(end),
                end,
                said(
                    f"the {end.who} heard that the other end closed (",
                    end.close("how"),
                    ") after ",
                    silence(end),
                    "; why is not known here",
                ),
            )
            for end in ENDS
        ),
    )


def verdicts(connections: DataFrame, agents: DataFrame, clock: DataFrame, config: Config) -> DataFrame:
    """The connections, with the `verdict` of those for which it can be given now."""
    named = F.coalesce(*(F.when(rule.holds, _outcome(rule, config)) for rule in rules(config)))
    due = every(F.col("verdict").isNull(), settled(config))
    return (
        connections.transform(gathered, agents, clock)
        .withColumn("_named", F.when(due, named))
        .withColumn("verdict", F.coalesce("verdict", _verdict(F.col("_named"))))
        .select(*connections.columns)
    )


def given(connections: DataFrame, batch_id: int) -> DataFrame:
    """The verdicts of one batch, with their connections: a row of the table of verdicts."""
    return (
        connections.where(F.col("verdict.batch_id") == batch_id)
        .select("verdict.*", *(name for name in connections.columns if name != "verdict"))
        .drop("batch_id")
    )


def _outcome(rule: Rule, config: Config) -> Column:
    """What a rule that holds leads to; `waits` while the agent that could speak against it may still do so."""
    told = complete(rule.rests_on, closed_us(rule.by) + _later_us(rule, config)) if rule.rests_on else F.lit(True)
    gone = silent(rule.rests_on, config) if rule.rests_on else F.lit(False)
    vain = every(~told, gone)
    return F.struct(
        every(~told, ~gone).alias("waits"),
        F.when(vain, "unknown").otherwise(rule.cause).alias("cause"),
        F.concat(
            rule.words,
            *(_last_word(end, config) for end in ENDS),
            F.when(vain, f"; it would be {rule.cause}, if that agent had seen nothing else").otherwise(""),
        ).alias("evidence"),
        F.lit(rule.by.name).alias("by"),
        silence_us(rule.by).alias("idle_us"),
        closed_us(rule.by).alias("closed_us"),
    )


def _later_us(rule: Rule, config: Config) -> float:
    """How much later, by its own clock, an agent may still tell of something that speaks against the rule."""
    # Of the closing end itself: what else its process closed within the same second.
    return SECOND_US if rule.rests_on is rule.by else config.clock_margin * SECOND_US


def _last_word(end: End, config: Config) -> Column:
    """Whether the end was watched, where it was not to its end."""
    since = F.date_format(F.timestamp_micros(end.agent("complete_until")), "HH:mm:ss")
    return (
        F.when(~watched(end), f"; nobody watched the {end.who}")
        .when(
            every(~closed(end), silent(end, config)),
            F.concat(F.lit(f"; no word from the agent at the {end.who} since "), F.coalesce(since, F.lit("its start"))),
        )
        .otherwise("")
    )


def _verdict(named: Column) -> Column:
    fields = ("cause", "evidence", "by", "idle_us", "closed_us")
    return F.when(
        every(~named["waits"]),
        F.struct(
            F.col("batch_id").alias("batch_id"),
            F.col("now_us").alias("judged_us"),
            *(named[name].alias(name) for name in fields),
        ),
    )
