"""Verdicts: closed connections in, each with the cause of its end and the evidence for it in words.

Of the `RULES` that hold, the first names the cause. What rests on an absence waits until the agent that would have
seen it has told of everything, and says so where that agent is silent. Pure functions of DataFrames; this room never
reads or writes.
"""

from __future__ import annotations

import re
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_probe_pipeline.config import Config
from kafka_probe_pipeline.evidence import SECOND_US, with_facts
from kafka_probe_pipeline.rules import OTHER, RULES, SIDE, End

# SQL. No more is to be heard of the end of the connection, or it was waited for long enough.
_WITHOUT = """{other}.closed AND NOT {end}.closed AND (
    {end}.watched AND ({end}.complete_until >= {other}.closed_us + margin_us OR {end}.silent)
    OR NOT {end}.watched AND now_us - {other}.heard_us >= wait_us)"""
SETTLED = " OR ".join(
    (
        "(client.closed AND broker.closed)",
        *(f"({_WITHOUT.format(end=end, other=other)})" for end, other in OTHER.items()),
    )
)
# What is left to say of an end that did not tell of its close.
_LAST_WORD = """CASE WHEN NOT {end}.watched THEN '; nobody watched the {end}'
    WHEN NOT {end}.closed AND {end}.silent THEN concat('; no word from the agent at the {end} since ', {end}.last_word)
    ELSE '' END"""


def verdicts(connections: DataFrame, agents: DataFrame, clock: DataFrame, config: Config) -> DataFrame:
    """The connections, with the `verdict` of those for which it can be given now."""
    settings = {"margin_us": config.clock_margin, "wait_us": config.other_end_wait}
    return (
        connections.transform(with_facts, agents, clock, config)
        .withColumns({name: F.lit(seconds * SECOND_US) for name, seconds in settings.items()})
        .withColumn("rule", F.when(F.col("verdict").isNull() & F.expr(SETTLED), _first_that_holds()))
        .withColumns({"told": _told(), "gone": _gone()})
        .withColumn("verdict", F.coalesce("verdict", _verdict()))
        .select(*connections.columns)
    )


def given(connections: DataFrame, batch_id: int) -> DataFrame:
    """The verdicts of one batch, with their connections: a row of the table of verdicts."""
    return (
        connections.where(F.col("verdict.batch_id") == batch_id)
        .select("verdict.*", *(name for name in connections.columns if name != "verdict"))
        .drop("batch_id")
    )


def counted(connections: DataFrame, clock: DataFrame, config: Config) -> DataFrame:
    """Per `cause` the verdicts of this batch (`new`) and of the last window (`recent`)."""
    is_new = F.col("verdict.batch_id") == F.col("batch_id")
    recent = F.col("now_us") - F.col("verdict.judged_us") < config.storm_window * SECOND_US
    return (
        connections.where(F.col("verdict").isNotNull())
        .crossJoin(F.broadcast(clock))
        .groupBy("verdict.cause")
        .agg(F.count_if(is_new).alias("new"), F.count_if(recent).alias("recent"))
    )


# The expressions are always the same, and to make one of many parts takes time.
@cache
def _first_that_holds() -> Column:
    """The number of the rule."""
    return F.coalesce(*(F.when(F.expr(rule.holds), number) for number, rule in enumerate(RULES)))


@cache
def _told() -> Column:
    """The agent that could speak against the rule has told of everything up to then."""
    # The closing end's own agent tells a second later what else its process closed.
    other = "{rests_on}.complete_until >= {by}.closed_us + IF('{rests_on}' = '{by}', 1000000, margin_us)"
    return _of_resting(other, otherwise=True)


@cache
def _gone() -> Column:
    """Nobody expects a word from that agent any more."""
    return _of_resting("{rests_on}.silent", otherwise=False)


def _of_resting(condition: str, *, otherwise: bool) -> Column:
    """A condition on the ends `rests_on` and `by` of the rule, for the rules that rest on an end."""
    numbers: dict[tuple[End, End], list[int]] = {}
    for number, rule in enumerate(RULES):
        if rule.rests_on:
            numbers.setdefault((rule.rests_on, rule.by), []).append(number)
    cases = (
        F.when(F.col("rule").isin(of), F.expr(condition.format(rests_on=rests_on, by=by)))
        for (rests_on, by), of in numbers.items()
    )
    return F.coalesce(*cases, F.lit(otherwise))


@cache
def _verdict() -> Column:
    """The verdict by `rule`; null while it waits."""
    rule, in_vain = F.col("rule"), ~F.col("told")
    by_client = rule.isin([number for number, rule in enumerate(RULES) if rule.by == "client"])
    cause = F.array(*(F.lit(rule.cause) for rule in RULES))[rule]
    words = F.coalesce(*(F.when(rule == number, _sentence(of.words)) for number, of in enumerate(RULES)))
    missing = F.concat(F.lit("; it would be "), cause, F.lit(", if that agent had seen nothing else"))
    return F.when(
        rule.isNotNull() & (F.col("told") | F.col("gone")),
        F.struct(
            "batch_id",
            F.col("now_us").alias("judged_us"),
            F.when(in_vain, "unknown").otherwise(cause).alias("cause"),
            F.concat(
                words,
                *(F.expr(_LAST_WORD.format(end=end)) for end in OTHER),
                F.when(in_vain, missing).otherwise(""),
            ).alias("evidence"),
            F.when(by_client, SIDE["client"]).otherwise(SIDE["broker"]).alias("by"),
            *(
                F.when(by_client, F.col(f"client.{name}")).otherwise(F.col(f"broker.{name}")).alias(alias)
                for name, alias in (("silence_us", "idle_us"), ("closed_us", "closed_us"))
            ),
        ),
    )


def _sentence(template: str) -> Column:
    """A text with the values of the columns in braces."""
    parts = re.split(r"\{(.*?)\}", template)
    return F.concat(*(F.col(part) if number % 2 else F.lit(part) for number, part in enumerate(parts)))
