//! Many document ids in one buffer.

use crate::model::{ChangeBatch, push_document_id};

/// Document ids, back to back: no allocation an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    /// Appends an id.
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.close();
    }

    fn close(&mut self) {
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// The ids of the tuples of a batch that a chunk was read into, in its order (of a row that is gone, the old
    /// one); none when one row has no id (a key column is NULL), which the reader reports as its failure.
    #[must_use]
    pub fn of_batch(batch: &ChangeBatch) -> Option<Self> {
        let mut keys = Self::default();
        keys.ends.reserve(batch.changes.len());
        for change in &batch.changes {
            let row = batch.row(change.new.or(change.old)?);
            if !push_document_id(batch.relation(change), row, &mut keys.bytes) {
                return None;
            }
            keys.close();
        }
        Some(keys)
    }

    /// One id.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.bytes.get(start..end)
    }

    /// All ids, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).filter_map(|index| self.get(index))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// About how much memory they hold, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<u32>()
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for Keys {
    fn from_iter<I: IntoIterator<Item = K>>(iter: I) -> Self {
        let mut keys = Self::default();
        for key in iter {
            keys.push(key.as_ref());
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_empty_ones_count() {
        let keys: Keys = ["a", "", "bc"].into_iter().collect();
        assert_eq!(keys.iter().collect::<Vec<_>>(), [b"a".as_slice(), b"", b"bc"]);
        assert_eq!((keys.len(), keys.get(3)), (3, None));
    }
}
