"""Makes documents of `{{table}}`."""

from typing import Any

from anabranch_sdk import Change, transform


@transform(
    tables=[{{table_text}}],
    # In this order; no others are sent.
    columns=[{{columns}}],
    # These come as the text that they are, with all their digits: `.parse()` gives their value.
    raw=[{{raw}}],
)
def plugin(change: Change[dict[str, Any]]) -> dict[str, Any] | None:
    # None: this row has no document.
    return dict(change.row)
