"""A picture of a start: its phases as bars along the time, and beside them the first tokens of other servers."""

from collections.abc import Mapping
from pathlib import Path

from headrace.bench.cold_start import ColdStart
from headrace.errors import HeadraceError

_TRANSFER, _WORK, _WAIT, _TOKEN = "#1f77b4", "#9aa5b1", "#d9dee4", "#d62728"
_WAITING = ("wait for weights",)


def check_plot(path: Path) -> None:
    """Raises HeadraceError where no picture could be written to `path`, before anything is measured."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise HeadraceError(
            "A picture needs matplotlib, which is not installed.",
            remedy="`pip install 'headrace[bench]'` or `pip install matplotlib`, or leave --plot away.",
        ) from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise HeadraceError(
            f"{path} has no ending that names a kind of picture.",
            remedy=f"Use one of {', '.join(sorted(kinds))}.",
        )
    if not path.absolute().parent.is_dir():
        raise HeadraceError(f"There is no folder {path.absolute().parent}.", remedy="Check --plot.")


def draw_start(path: Path, title: str, start: ColdStart, first_tokens_s: Mapping[str, float]) -> None:
    """Write the picture; the ending of `path` chooses its kind.

    Args:
        start: whose phases are shown.
        first_tokens_s: server → its median time to the first token; shown where there are several.

    Raises OSError.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    phases = start.phases
    panels = 2 if len(first_tokens_s) > 1 else 1
    heights = [max(len(phases), 2) + 1.5, len(first_tokens_s) + 1.5][:panels]
    figure = Figure(figsize=(10, 0.3 * sum(heights) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels, 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]

    chart = axes[0]
    for row, phase in enumerate(phases):
        is_transfer = phase.name == "transfer"
        color = _TRANSFER if is_transfer else _WAIT if phase.name in _WAITING else _WORK
        chart.barh(row, phase.end_s - phase.start_s, left=phase.start_s, height=0.7, color=color)
        if is_transfer:
            chart.axvspan(phase.start_s, phase.end_s, color=_TRANSFER, alpha=0.08, linewidth=0)
        chart.annotate(f" {phase.end_s - phase.start_s:.2f} s", (phase.end_s, row), va="center", fontsize=8)
    chart.set_yticks(range(len(phases)), [phase.name for phase in phases], fontsize=8)
    chart.invert_yaxis()
    chart.axvline(
        start.first_token_s, color=_TOKEN, linewidth=1.5, label=f"first token, {start.first_token_s:.2f} s"
    )
    chart.set_xlim(0, 1.12 * max([start.first_token_s, *(phase.end_s for phase in phases)]))
    chart.set_xlabel("seconds from exec")
    chart.set_title(title, fontsize=10)
    chart.legend(loc="lower left", fontsize=8)

    if panels == 2:
        bars = axes[1]
        names = list(first_tokens_s)
        bars.barh(range(len(names)), list(first_tokens_s.values()), height=0.6, color=_TOKEN)
        for row, name in enumerate(names):
            bars.annotate(
                f" {first_tokens_s[name]:.2f} s", (first_tokens_s[name], row), va="center", fontsize=8
            )
        bars.set_yticks(range(len(names)), names, fontsize=8)
        bars.invert_yaxis()
        bars.set_xlim(0, 1.15 * max(first_tokens_s.values()))
        bars.set_xlabel("seconds from exec to the first token, medians")
    figure.savefig(path, dpi=150)
