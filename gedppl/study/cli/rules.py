"""Rules and oracles by name on the command line: ``--confidence credible:level=0.9,source=nuts``.

One spelling: NAME, or NAME:option=value,option=value. Values are numbers, true, false or words. One
rule is for all outcomes; ``--confidence toxicity=credible:level=0.9`` is for one of them, and the
option may be repeated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gedppl as ged
from gedppl.errors import SettingError

RULES: dict[str, Callable[..., Any]] = {
    "likelihood_ratio": ged.likelihood_ratio,
    "credible": ged.credible_set,
    "sampled": ged.sampled_set,
    "chi_square": ged.radius.chi_square,
    "paper": ged.paper_radius,
    "bootstrap": ged.parametric_bootstrap,
}
ORACLES: dict[str, Callable[..., Any]] = {
    "mle": ged.mle,
    "least_squares": ged.least_squares,
    "score_equations": ged.score_equations,
    "svi": ged.svi,
}


def read_rules(option: str, texts: Sequence[str], known: Mapping[str, Callable[..., Any]]) -> Any:
    """What the texts of one option ask for: None without any, one rule for all outcomes, or outcome
    -> rule.

    >>> read_rules("--confidence", ["credible:level=0.9,source=nuts"], RULES).describe(0.05)[:33]
    'posterior quantile at level 0.9 f'
    """
    if not texts:
        return None
    parts = [_of_stream(text) for text in texts]
    if parts[0][0] is None:
        if len(parts) > 1:
            raise SettingError(
                f"{option} is given twice for all outcomes; name the outcome that each is for: "
                f"{option} NAME={texts[0]}"
            )
        return _made(option, parts[0][1], known)
    found: dict[str, Any] = {}
    for stream, text in parts:
        if stream is None or stream in found:
            raise SettingError(
                f"{option} {text}: name one outcome for each, {option} NAME={text}, "
                "and each outcome once"
            )
        found[stream] = _made(option, text, known)
    return found


def _of_stream(text: str) -> tuple[str | None, str]:
    """The outcome in front of the rule, if there is one: an = before any colon."""
    head, colon, rest = text.partition(":")
    stream, equals, name = head.partition("=")
    return (stream.strip(), name + colon + rest) if equals else (None, text)


def _made(option: str, text: str, known: Mapping[str, Callable[..., Any]]) -> Any:
    name, _, given = text.partition(":")
    if name not in known:
        raise SettingError(f"{option} {text}: there is no {name!r}; choose from {', '.join(known)}")
    takes = [
        p.name
        for p in inspect.signature(known[name]).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    options: dict[str, Any] = {}
    for pair in filter(None, given.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key not in takes or not value:
            raise SettingError(
                f"{option} {text}: write {name}:option=value,... with options from "
                f"{', '.join(takes) or 'none'}"
            )
        options[key] = _value(value)
    return known[name](**options)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
