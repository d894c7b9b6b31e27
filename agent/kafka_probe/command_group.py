"""The group of all commands: the agent's own, and those that packages add by an entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

_ADDED = "kafka_probe.commands"
_SHORT_HELP = 150  # characters


class CommandGroup(click.Group):
    """The commands of the agent, and those that packages add by an entry point in the group kafka_probe.commands."""

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
