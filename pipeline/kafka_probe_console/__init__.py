"""Answers from the pipeline's tables, without Spark: DuckDB over Delta Lake, as subcommands of `kafka-probe`.

To add a command, write a function that returns an `AnswerView` in NAME_command.py, decorate it with `prints_view`, and
name it in the entry points of pyproject.toml, in docs/guide/answers.md, and in the README's table of questions.
"""
