"""Command-line flags derived from the fields of `PipelineConfig`: name, type, help and variable are only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from kafka_probe_pipeline.config import VARIABLE_PREFIX, PipelineConfig, flag_of

Command = Callable[..., None]


def flags(command: Command) -> Command:
    """Give a command the flags of all fields. Absent ones arrive as None."""
    for name, field in reversed(PipelineConfig.model_fields.items()):
        command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[Command], Command]:
    default = f"; default: {field.default}" if field.default not in (None, "", False, {}) else ""
    text = f"{field.description}{default} [{VARIABLE_PREFIX}{name.upper()}]"
    options: dict[str, Any] = {"help": text, "default": None}
    if field.annotation is bool:
        return click.option(f"{flag_of(name)}/--no-{flag_of(name)[2:]}", **options)
    if field.annotation == dict[str, str]:
        return click.option(flag_of(name), multiple=True, metavar="KEY=VALUE", callback=_pairs, **options)
    kinds = {int: "N", float: "SECONDS", Path: "DIR"}
    annotations = (field.annotation, *get_args(field.annotation))
    choices = next((get_args(one) for one in annotations if get_origin(one) is Literal), None)
    kind = next((kind for kind in annotations if kind in kinds), None)
    metavar = "|".join(choices) if choices else kinds[kind] if kind else "TEXT"
    return click.option(flag_of(name), metavar=metavar, **options)


def _pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise click.BadParameter(f"{value}: must be key=value.")
    return dict(value.split("=", 1) for value in values) or None
