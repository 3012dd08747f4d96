//! The spans that traces are made of: a batch from its transform until its sink has it, and the reading of a chunk.
//!
//! They name what they are about by names from the config, positions and counts, never by keys or values of rows.
//! Where nobody exports them they cost the look whether somebody does.

use tracing::{Span, field::Empty, info_span};

use crate::model::{EntityName, Lsn};

/// What exported spans are told by, and kept out of the log.
pub(super) const TARGET: &str = "anabranch::traces";

/// Some changes of one mapping, from their transform until their sink has accepted them.
pub(in crate::runtime) fn batch(
    mapping: &str,
    entity: &EntityName,
    changes: usize,
    lsn: Lsn,
    backfill: bool,
) -> Span {
    info_span!(target: TARGET, parent: None, "batch", mapping, %entity, changes, %lsn, backfill)
}

/// The transform of a batch: all of its attempts.
pub(in crate::runtime) fn transform(batch: &Span) -> Span {
    info_span!(target: TARGET, parent: batch, "transform", documents = Empty, failures = Empty)
}

/// One delivery, perhaps of several batches: part of the first, and linked to the others.
pub(in crate::runtime) fn delivery<'a>(sink: &str, mut batches: impl Iterator<Item = &'a Span>) -> Span {
    let Some(first) = batches.next() else { return Span::none() };
    let span = info_span!(target: TARGET, parent: first, "deliver", sink, failures = Empty);
    batches.for_each(|other| {
        span.follows_from(other);
    });
    span
}

/// The reading of a chunk of a backfill, with its watermarks.
pub(in crate::runtime) fn chunk(entity: &EntityName, chunk: u64) -> Span {
    info_span!(target: TARGET, parent: None, "read chunk", %entity, chunk, rows = Empty, bytes = Empty)
}
