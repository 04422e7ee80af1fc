"""Options that several verbs share, each declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Run = Annotated[Path, typer.Argument(help="A run folder, or a zip file of one where it is only read.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")]
NoReport = Annotated[
    bool, typer.Option("--no-report", help="End with the found prompt: no test, no comparison, no report.html.")
]
TestRows = Annotated[int | None, typer.Option("--test-rows", min=1, help="Report on at most N test rows.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Root of all randomness.")]
NoMemo = Annotated[bool, typer.Option("--no-memo", help="Neither use nor keep scores of other runs.")]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What every verb offers."""

    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False


@dataclass(frozen=True, kw_only=True)
class Trust(Output):
    """What verbs offer that do what a recipe or a run folder asks for."""

    trust: Annotated[
        bool, typer.Option("--trust", help="Agree to the code, server and files of a recipe or run; remembered.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Threads(Output):
    """What verbs that compute offer."""

    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads for torch.")] = None


@dataclass(frozen=True, kw_only=True)
class Machine(Threads, Trust):
    """What verbs that run models offer."""

    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps; default: the best one.")] = (
        None
    )
    model_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code that comes with a model run here.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Search(Machine):
    """What every search offers."""

    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: runs/<name>.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False
    calls: Annotated[
        int | None,
        typer.Option(
            "--calls",
            min=1,
            help="Rows that the search may have answered (calls); the report takes more, see --estimate.",
        ),
    ] = None
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.01, help="Minutes that the search may take.")] = (
        None
    )
    sets: Annotated[list[str] | None, typer.Option("--set", help="Any setting of a recipe, such as policy.k=256.")] = (
        None
    )
    no_memo: NoMemo = False
    no_report: NoReport = False
    test_rows: TestRows = None
    private: Annotated[
        bool, typer.Option("--private", help="Keep texts and pictures of the data out of the run folder and report.")
    ] = False
    estimate: Annotated[bool, typer.Option("--estimate", help="Print what the run would spend, and stop.")] = False
    seed: Seed = None


@dataclass(frozen=True, kw_only=True)
class FolderSearch(Search):
    """What a search offers that must be told to remove an earlier run."""

    force: Annotated[bool, typer.Option("--force", help="Remove the run in the folder and start again.")] = False


@dataclass(frozen=True, kw_only=True)
class TaskSearch(FolderSearch):
    """What a search offers that has no recipe file."""

    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="How to search (`pinprompt methods`); default: race to classify and restyle, guided to invert.",
        ),
    ] = None
    profile: Annotated[
        str, typer.Option("--profile", help="quick: minutes on a laptop; paper: the published settings.")
    ] = "quick"


def expand(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer wants it: a parameter whose type is one of the classes above becomes that class's options."""
    hints = get_type_hints(verb, include_extras=True)
    kept, groups = [], {}
    for name, parameter in inspect.signature(verb).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
        else:
            kept.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    for group in groups.values():
        annotations, defaults = get_type_hints(group, include_extras=True), {f.name: f.default for f in fields(group)}
        # --help shows what is special to a verb first, what all verbs have last.
        names = [name for part in group.__mro__[:-1] for name in inspect.get_annotations(part)]
        kept += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotations[name]
            )
            for name in names
        ]

    @wraps(verb)
    def expanded(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **made)

    expanded.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in kept}
    return expanded
