"""Numbers of its own at the host's /metrics (`[plugins.<name>.grants] metrics = true`).

Whose plugin imports this module asks for it. The host adds the labels `plugin` and `mapping`, and bounds how many series
there may be: give labels few values.
"""

from __future__ import annotations

from . import host
from .failure import whole


def count(name: str, by: int = 1, /, **labels: object) -> None:
    """Adds to a counter, which is shown as `anabranch_guest_<name>_total`."""
    if not isinstance(by, int) or by < 0:
        raise TypeError(f"a counter grows by whole numbers, not by {by!r}")
    host.current.count(whole("the name of a number", name), _pairs(labels), by)


def gauge(name: str, value: float, /, **labels: object) -> None:
    """Sets a gauge, which is shown as `anabranch_guest_<name>`."""
    host.current.gauge(whole("the name of a number", name), _pairs(labels), float(value))


def _pairs(labels: dict[str, object]) -> host.Labels:
    return [
        (whole("the name of a label", name), whole("the value of a label", str(value))) for name, value in labels.items()
    ]
