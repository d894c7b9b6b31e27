"""The documents for people: links and anchors lead somewhere, README is short, and its figures are measured ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from kafka_probe.cli import commands
from kafka_probe.config import load
from kafka_probe_pipeline.cli import cli as pipeline_commands

ROOT = Path(__file__).parents[2]
NAMES = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "vagrant/README", "tests/README")
GUIDES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [*(ROOT / f"{name}.md" for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
MOST_LINES = 150
COMMAND = re.compile(
    r"(sudo|\.|\S*\.venv/bin/\S+|apt-get|journalctl|kubectl|podman|sysctl|systemctl|uname) \S|make \S+ \w+="
)


# Flags of other programs: image builders, spark-submit, venv, and a command line with a secret.
OF_OTHERS = {"--build-arg", "--conf", "--editable", "--jars", "--packages", "--password", "--system-site-packages"}


def prose(path: Path) -> str:
    """Return a document without blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors that a forge gives to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def inline_commands(text: str) -> list[str]:
    """Return commands with arguments that stand in prose or tables, where no test runs them."""
    questions = r"^\| [^|]+[?:] \| `[^`]+` \|$"  # of README.md, which are run
    return [
        span
        for span in re.findall(r"`([^`\n]+)`", re.sub(questions, "", text, flags=re.MULTILINE))
        if COMMAND.match(span)
    ]


def leads_somewhere(link: str, path: Path) -> bool:
    """Return True for a file and anchor that exist, and for a well-formed https address."""
    if ":" in link:
        parts = urlsplit(link)
        return parts.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc) is not None
    name, _, anchor = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    return target.exists() and target.is_relative_to(ROOT) and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert [link for link in links(path) if not leads_somewhere(link, path)] == []


@pytest.mark.parametrize(
    "link", ["absent.md", "README.md#absent", "#absent", "http://example.com/", "https://", "https://host/", "../x"]
)
def test_a_link_to_nowhere_is_noticed(link: str) -> None:
    assert not leads_somewhere(link, ROOT / "README.md")


def test_every_document_is_linked_from_the_readme_or_from_one_that_is() -> None:
    reached, found = set[Path](), {ROOT / "README.md"}
    while new := found - reached:
        reached |= new
        found |= {
            (path.parent / link.partition("#")[0]).resolve() for path in new for link in links(path) if ":" not in link
        }
        found = {path for path in found if path.suffix == ".md"}
    assert [path for path in DOCUMENTS if path not in reached] == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_stand_in_blocks_which_are_run(path: Path) -> None:
    assert inline_commands(prose(path)) == []


@pytest.mark.parametrize("command", ["sudo reboot", ". .venv/bin/activate", ".venv/bin/kafka-probe top", "make a B=1"])
def test_a_command_in_prose_is_noticed(command: str) -> None:
    assert inline_commands(f"Run `{command}`.") == [command]


def flags(command: click.Command) -> set[str]:
    """Return the flags of a command and of those below it."""
    own = {flag for parameter in command.params for flag in parameter.opts}
    if not isinstance(command, click.Group):
        return own
    context = click.Context(command)
    below = (command.get_command(context, name) for name in command.list_commands(context))
    return own.union(*(flags(one) for one in below if one))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_flag_that_a_document_names_exists(path: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", prose(path))
    named = {flag for span in spans for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span)}
    assert named - flags(commands) - flags(pipeline_commands) - OF_OTHERS == set()


def test_settings_in_documents_can_be_loaded(tmp_path: Path) -> None:
    blocks = [
        block
        for path in GUIDES
        for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) >= 3
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        load({}, file)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", path.read_text())) - targets == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_source_file_that_is_named_exists(path: Path) -> None:
    folders = ("agent", "bpf", "pipeline", "scripts", "tests", "vagrant")
    sources = [str(source) for folder in folders for source in (ROOT / folder).rglob("*.*")]
    named = re.findall(r"`([\w/]+\.(?:py|c|h|sh))`", path.read_text())
    assert [name for name in named if not any(source.endswith(f"/{name}") for source in sources)] == []


def test_the_readme_of_the_tests_names_every_folder_and_nothing_that_is_not_there() -> None:
    tests = ROOT / "tests"
    named = set(re.findall(r"`([\w/]+(?:/|\.py))`", (tests / "README.md").read_text()))
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in (tests, ROOT))] == []
    folders = {path.parent.relative_to(tests) for path in tests.glob("*/*.py")}
    programs = {path.parent.relative_to(tests) for path in tests.glob("programs/*/*.py")}
    assert {f"{folder}/" for folder in folders | programs} - named == {"programs/"}


def test_figures_of_the_readme_are_those_of_the_bench() -> None:
    bench = json.loads((ROOT / "docs/data/bench.json").read_text())
    agent, tcpdump, tshark = (bench[f"{name}_cpu_us_per_request"]["median"] for name in ("agent", "tcpdump", "tshark"))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"{agent:.1f} µs of CPU per Kafka request (`tcpdump -w` {tcpdump:.1f}, `tshark` {tshark:.0f})"
        f" and at its peak {bench['agent_rss_mb']['max']:.0f} MiB of memory;"
        f" its hooks took {bench['kernel_ns_per_request_tracepoint']['median'] / 1000:.1f} µs in the kernel"
    ) in readme


@pytest.mark.parametrize("name", ["CONTRIBUTING", "tests/README"])
def test_targets_and_programs_that_developers_run_exist(name: str) -> None:
    text = (ROOT / f"{name}.md").read_text()
    spans = " ".join(re.findall(r"`[^`\n]+`|^ {4}.+$", text, re.MULTILINE))
    targets = set(re.findall(r"\bmake ([a-z-]+)(?=[`\s])", spans))
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert [target for target in targets if f"\n{target}: " not in makefile] == []
    modules = [ROOT / name.replace(".", "/") for name in re.findall(r"python -m ((?:tests|scripts)[\w.]+)", text)]
    scripts = [ROOT / path for path in re.findall(r"python (scripts/\w+\.py)", text)]
    programs = [*scripts, *(path / "__main__.py" if path.is_dir() else path.with_suffix(".py") for path in modules)]
    assert [path for path in programs if not path.exists()] == []
