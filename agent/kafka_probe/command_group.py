"""The group of all commands: the agent's own, and those that packages add by an entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from kafka_probe.config import DaemonConfig, SinkConfig

_ADDED = "kafka_probe.commands"
_SHORT_HELP = 150  # characters


class SettingOption(click.Option):
    """The flag of a setting."""


class SettingsCommand(click.Command):
    """A command whose help has its own options first, and then the settings in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections.setdefault(_section(parameter), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _section(parameter: click.Parameter) -> str:
    if not isinstance(parameter, SettingOption):
        return "Options"
    if parameter.name in SinkConfig.model_fields:
        return "Destination of the events"
    return "HTTP server and archive" if parameter.name in DaemonConfig.model_fields else "Capture"


class CommandGroup(click.Group):
    """The commands of the agent, and those that packages add by an entry point in the group kafka_probe.commands."""

    command_class = SettingsCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=_ADDED).names})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        added = entry_points(group=_ADDED, name=name)
        return super().get_command(ctx, name) or next((entry.load() for entry in added), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print a section with the agent's own commands, and one with those that packages add."""
        own = super().list_commands(ctx)
        added = [name for name in self.list_commands(ctx) if name not in own]
        for title, names in (("Commands on this host", own), ("Commands that read the pipeline's tables", added)):
            found = ((name, self.get_command(ctx, name)) for name in names)
            if rows := [
                (name, command.get_short_help_str(_SHORT_HELP))
                for name, command in found
                if command and not command.hidden
            ]:
                with formatter.section(title):
                    formatter.write_dl(rows)
