//! What the receiver has said so far about the requests of deliveries that did not succeed as a whole.
//!
//! A delivery of ten requests whose tenth is refused with 429 is tried again as a whole. Without a memory
//! the other nine would go out again each time, and a rate limit might never be passed.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use super::answer::Verdict;

/// What a request carries, hashed.
pub(super) type Key = [u8; 32];

/// Deliveries that were given up (a mapping was removed, a term ended) leave their entries; beyond this many
/// all are forgotten, which costs repetitions and nothing else.
const LIMIT: usize = 10_000;

/// Requests by what they carry.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<HashMap<Key, Known>>);

#[derive(Clone, Debug)]
struct Known {
    id: String,
    verdict: Option<Verdict>,
}

impl Progress {
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `webhook-id` of a request, the same for every attempt, and the answer if there was one.
    ///
    /// Ids are random, not made from the content: the same content may rightly be sent twice (a row that
    /// changes and changes back), and a receiver that drops known ids must not drop that.
    pub(super) fn begin(&self, key: Key) -> (String, Option<Verdict>) {
        let mut known = self.known();
        if known.len() >= LIMIT && !known.contains_key(&key) {
            known.clear();
        }
        let new = || Known { id: format!("msg_{}", Uuid::new_v4().simple()), verdict: None };
        let Known { id, verdict } = known.entry(key).or_insert_with(new).clone();
        (id, verdict)
    }

    /// The receiver answered.
    pub(super) fn answered(&self, key: Key, verdict: &Verdict) {
        if let Some(entry) = self.known().get_mut(&key) {
            entry.verdict = Some(verdict.clone());
        }
    }

    /// Answers count no longer: the receiver may be another, or may have been emptied. Ids stay.
    pub(super) fn doubt(&self) {
        self.known().values_mut().for_each(|entry| entry.verdict = None);
    }

    /// The delivery that these belong to is over.
    pub(super) fn finish(&self, keys: &[Key]) {
        let mut known = self.known();
        for key in keys {
            known.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_lives_as_long_as_its_delivery() {
        let progress = Progress::default();
        let (id, known) = progress.begin([1; 32]);
        assert!(known.is_none());
        assert_eq!(progress.begin([1; 32]).0, id);
        progress.answered([1; 32], &Verdict::Taken(Vec::new()));
        assert_eq!(progress.begin([1; 32]), (id.clone(), Some(Verdict::Taken(Vec::new()))));
        progress.doubt();
        assert_eq!(progress.begin([1; 32]), (id.clone(), None));
        progress.finish(&[[1; 32]]);
        assert_ne!(progress.begin([1; 32]).0, id);
    }

    #[test]
    fn memory_is_bounded() {
        let progress = Progress::default();
        for n in 0..25_000_u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&n.to_be_bytes());
            progress.begin(key);
        }
        assert!(progress.known().len() <= LIMIT);
    }
}
