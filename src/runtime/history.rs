//! Whether the source still has the history that this installation has read: pure.
//!
//! Two memories are asked. The checkpoint in the state schema is part of the source: it goes back with it when a
//! backup is restored, and is a little older on a promoted standby. What this process remembers ([`Memory`]) does not.
//! Guarantees that a position is never taken for one of another history, and that where nobody knows whether
//! documents were made of changes that the source has lost, the answer is a gap. Must never look anything up.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    model::Lsn,
    postgres::{SlotState, SystemIdentity},
    state::Installation,
};

/// What there is of an installation on the server.
pub(super) struct Found<'a> {
    pub(super) slot: Option<&'a SlotState>,
    pub(super) system: &'a SystemIdentity,
    pub(super) publication: Option<u32>,
    /// The publication's name, by the config.
    pub(super) named: &'a str,
    /// Where earlier timelines of the server ended; asked for where it is on another one than before.
    pub(super) ends: &'a [(i32, Lsn)],
}

/// What this process knows of the last term that it led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) system: String,
    pub(super) timeline: i32,
    pub(super) term: i64,
    /// The latest position that was saved.
    pub(super) saved: Lsn,
    /// Changes and rows up to here may be in the sinks.
    pub(super) delivered: Lsn,
}

impl Seen {
    /// Whether the term that is stored was this process's: another that led in between would have been another term.
    fn is_of(&self, stored: &Installation) -> bool {
        let of = (&stored.system_identifier, stored.timeline, stored.term);
        (&self.system, self.timeline, self.term) == of
    }
}

/// Outlives the terms of a process. Positions are noted as they come, without a lock.
#[derive(Debug, Default)]
pub(super) struct Memory {
    last: Mutex<Option<(String, i32, i64)>>,
    saved: AtomicU64,
    delivered: AtomicU64,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Option<(String, i32, i64)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A term begins, on this checkpoint, which is saved. Whoever led before can have read no further than to the
    /// end of the WAL now.
    pub(super) fn begins(&self, installation: &Installation, end: Lsn) {
        let Installation { system_identifier, timeline, term, confirmed, .. } = installation;
        *self.lock() = Some((system_identifier.clone(), *timeline, *term));
        self.saved.store(confirmed.0, Ordering::Release);
        self.delivered.store(end.0.max(confirmed.0), Ordering::Release);
    }

    /// A position is saved.
    pub(super) fn saved(&self, position: Lsn) {
        self.saved.fetch_max(position.0, Ordering::AcqRel);
    }

    /// What was committed before is on its way to the sinks. Parts of a transaction are, once what is beyond the
    /// beginning of its commit record is: a server has the whole record, or ends at or before it.
    pub(super) fn delivered(&self, position: Lsn) {
        self.delivered.fetch_max(position.0, Ordering::AcqRel);
    }

    /// None before the first term of this process.
    pub(super) fn seen(&self) -> Option<Seen> {
        let (system, timeline, term) = self.lock().clone()?;
        let position = |position: &AtomicU64| Lsn(position.load(Ordering::Acquire));
        Some(Seen {
            system,
            timeline,
            term,
            saved: position(&self.saved),
            delivered: position(&self.delivered),
        })
    }
}

/// The timeline that was read before, where the server is on an earlier one of the same cluster: a former primary that
/// still runs answers like the real one, and nothing must be read from it.
pub(super) fn is_behind(seen: Option<&Seen>, now: &SystemIdentity) -> Option<i32> {
    let seen = seen.filter(|seen| seen.system == now.system_identifier)?;
    (now.timeline < seen.timeline).then_some(seen.timeline)
}

/// Why the stream cannot go on from where it was.
pub(super) fn gap(stored: &Installation, seen: Option<&Seen>, found: &Found<'_>) -> Option<String> {
    if stored.system_identifier != found.system.system_identifier {
        let (from, to) = (&stored.system_identifier, &found.system.system_identifier);
        return Some(format!("this is another cluster (system identifier {from} before, {to} now)"));
    }
    // Nothing was ever confirmed: the first start was interrupted before there was a slot.
    if stored.confirmed == Lsn::ZERO {
        return None;
    }
    let seen = seen.filter(|seen| seen.system == stored.system_identifier);
    let moved = moved(stored, found.system);
    rolled_back(stored, seen, found.system)
        .or_else(|| slot_gap(stored, seen, found))
        .or_else(|| diverged(stored, seen, found))
        .map(|reason| if moved.is_empty() { reason } else { format!("{moved}, and {reason}") })
        .or_else(|| publication_gap(stored, found))
}

/// Words on a server that was promoted since; none where it was not.
fn moved(stored: &Installation, now: &SystemIdentity) -> String {
    if stored.timeline == now.timeline {
        return String::new();
    }
    format!("the server was promoted or restored (timeline {} before, {} now)", stored.timeline, now.timeline)
}

/// A backup was restored: the source, or the state schema in it, is as it was at an earlier time.
fn rolled_back(stored: &Installation, seen: Option<&Seen>, now: &SystemIdentity) -> Option<String> {
    let (at, end) = (stored.confirmed, now.flushed);
    if at > end {
        return Some(format!(
            "the position {at} that was saved is beyond the end of the server's WAL, {end}"
        ));
    }
    let seen = seen?;
    if now.timeline != seen.timeline {
        return None;
    }
    if stored.term < seen.term || (stored.term == seen.term && at < seen.saved) {
        let (term, saved) = (seen.term, seen.saved);
        return Some(format!(
            "what was saved at {saved} in term {term} is not there any more: a backup was restored"
        ));
    }
    (seen.saved > end).then(|| format!("{} was read before, and the server's WAL ends at {end}", seen.saved))
}

fn slot_gap(stored: &Installation, seen: Option<&Seen>, found: &Found<'_>) -> Option<String> {
    let Some(slot) = found.slot else { return Some(format!("the slot {} is gone", stored.name)) };
    // Whoever makes it, it is not the one that was read.
    let Some(confirmed) = slot.confirmed else {
        return Some(format!("the slot {} was made anew, and is not finished", stored.name));
    };
    if let Some(reason) = &slot.lost {
        return Some(format!("the server has given the slot {} up: {reason}", stored.name));
    }
    // A position is saved before it is confirmed, so ours is never behind: but a standby may have got the slot's
    // position, and not the change that saved it.
    let by_us = seen.filter(|seen| found.system.timeline != seen.timeline && seen.is_of(stored));
    let saved = by_us.map_or(stored.confirmed, |seen| seen.saved.max(stored.confirmed));
    (confirmed > saved).then(|| {
        format!(
            "the slot {} stands at {confirmed}, ahead of the {saved} that was saved: somebody moved it or made it anew",
            stored.name
        )
    })
}

/// Whether documents may have been made of what the former primary had and this one never got.
fn diverged(stored: &Installation, seen: Option<&Seen>, found: &Found<'_>) -> Option<String> {
    let now = found.system.timeline;
    if stored.timeline == now {
        return None;
    }
    let before = stored.timeline;
    let Some((_, end)) = found.ends.iter().find(|(timeline, _)| *timeline == before) else {
        return Some(format!("its history does not have timeline {before}"));
    };
    match seen.filter(|seen| seen.is_of(stored)) {
        Some(seen) if seen.delivered <= *end => None,
        Some(_) => Some(format!(
            "changes were read beyond {end}, where timeline {before} ended: the former primary had them alone"
        )),
        None => Some(format!(
            "nobody remembers whether changes were read beyond {end}, where timeline {before} ended"
        )),
    }
}

/// The stream is decoded with the publication as it was at each change (Postgres documentation, "Logical
/// Decoding Output Plugins": catalogues are seen as of then): what was written while there was none is refused
/// for ever, or left out in silence from Postgres 18 on.
fn publication_gap(stored: &Installation, found: &Found<'_>) -> Option<String> {
    let Found { publication, named, .. } = found;
    if stored.publication != *named {
        let before = &stored.publication;
        return Some(format!("the publication is {named} now, and was {before} when the slot was read last"));
    }
    match (stored.publication_oid, publication) {
        (_, None) => Some(format!("the publication {named} is gone")),
        (Some(before), Some(now)) if before != *now => {
            Some(format!("the publication {named} was dropped and made anew"))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
