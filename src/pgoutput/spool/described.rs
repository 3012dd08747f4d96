//! Which description of each table came last.
//!
//! The server describes a table again for each streamed transaction, and counts what a committed one has described as
//! known; whatever may have changed a table, its publication too, makes it forget that it has described it at all. So
//! rows of a streamed transaction follow what that transaction described last, and rows that come whole follow what
//! *arrived* last, streamed or not, rolled back or not: a description that is not equal to one that the server takes
//! for known is always followed by another before the next row.

use std::collections::BTreeMap;

/// The last Relation message of each oid, as it comes outside of a streamed block. There are as many as there are
/// published tables.
#[derive(Debug, Default)]
pub(super) struct Descriptions(BTreeMap<[u8; 4], Vec<u8>>);

impl Descriptions {
    /// Takes note of a Relation message, by what comes after its first byte; tells whether it repeats the last one.
    pub(super) fn note(&mut self, body: &[u8]) -> bool {
        let Some(oid) = body.first_chunk() else { return false };
        let known = self.0.entry(*oid).or_default();
        if known.get(1..) == Some(body) {
            return true;
        }
        known.clear();
        known.push(b'R');
        known.extend_from_slice(body);
        false
    }

    /// Those of the same tables that came after others.
    pub(super) fn differing<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = &'a [u8]> {
        others.0.iter().filter_map(|(oid, other)| {
            let newest = self.0.get(oid)?;
            (newest != other).then_some(newest.as_slice())
        })
    }
}
