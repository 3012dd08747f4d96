//! Where a backfill stands: the cursor, the size of the next page, and how much is left.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One column of the key that a table is paged by.
///
/// Two keys are the same when attribute numbers, types and collations are, in order: a renamed column
/// keeps its place, a column of another type or order of sorting does not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyColumn {
    /// The name, unquoted.
    pub name: String,
    /// `pg_attribute.attnum`.
    pub attribute: i16,
    /// `pg_attribute.atttypid`.
    pub type_oid: u32,
    /// `pg_attribute.attcollation`; 0 where the type has none.
    pub collation: u32,
}

impl PartialEq for KeyColumn {
    fn eq(&self, other: &Self) -> bool {
        (self.attribute, self.type_oid, self.collation) == (other.attribute, other.type_oid, other.collation)
    }
}

impl Eq for KeyColumn {}

/// The key of the last row of a chunk, in the server's own text, with the columns that it belongs to. The
/// server compares it, with the columns' own types and collations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The columns.
    pub key: Vec<KeyColumn>,
    /// One text a column.
    pub values: Vec<String>,
}

/// What one reading may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSettings {
    /// The most rows (`chunk_size`).
    pub most: u32,
    /// The fewest rows that a slow reading shrinks the page to.
    pub floor: u32,
    /// The time that a reading should take.
    pub time: Duration,
    /// The bytes that a reading should have; the reader stops after the row that passes them.
    pub bytes: usize,
}

impl Default for PageSettings {
    fn default() -> Self {
        Self { most: 10_000, floor: 100, time: Duration::from_millis(500), bytes: 4 << 20 }
    }
}

/// The size of the next page, adapted to a time and a byte target per reading.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    settings: PageSettings,
    limit: u32,
    row_bytes: usize,
}

impl Page {
    /// Begins with a quarter of the most.
    #[must_use]
    pub fn new(settings: PageSettings) -> Self {
        let most = settings.most.max(1);
        let settings = PageSettings { most, floor: settings.floor.clamp(1, most), ..settings };
        Self { settings, limit: (most / 4).max(settings.floor), row_bytes: 0 }
    }

    /// How many rows the next reading asks for; at least one.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// How many bytes the next reading is expected to have.
    #[must_use]
    pub fn expected_bytes(&self) -> usize {
        let rows = usize::try_from(self.limit).unwrap_or(usize::MAX);
        match self.row_bytes {
            0 => self.settings.bytes,
            bytes => bytes.saturating_mul(rows).min(self.settings.bytes),
        }
    }

    /// A reading took this long and had so many rows and bytes. The page at most doubles at once.
    pub fn learn(&mut self, rows: u64, bytes: usize, elapsed: Duration) {
        if rows == 0 {
            return;
        }
        let width = bytes as u64 / rows;
        self.row_bytes = usize::try_from(width).unwrap_or(usize::MAX).max(1);
        let by_bytes = (self.settings.bytes as u64 / width.max(1)).max(1);
        let micros = elapsed.as_micros().max(1);
        let by_time = u64::try_from(u128::from(rows) * self.settings.time.as_micros() / micros);
        let next = by_bytes.min(by_time.unwrap_or(u64::MAX)).min(u64::from(self.limit) * 2);
        // The floor holds against time only: the byte target may go below it.
        let floor = u64::from(self.settings.floor).min(by_bytes);
        let next = next.clamp(floor, u64::from(self.settings.most));
        self.limit = u32::try_from(next).unwrap_or(self.settings.most);
    }

    /// The server's statement timeout cut a reading: half of the rows next time. False when the page was
    /// at its floor already.
    pub fn shrink(&mut self) -> bool {
        let before = self.limit;
        self.limit = (before / 2).max(self.settings.floor).min(before);
        self.limit < before
    }
}

/// The part of a table that has been read, from 0 to 1; none without an estimate of its rows. A table that
/// has outgrown its estimate stays below 1 until its run is complete.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub fn share_done(rows: u64, estimate: Option<u64>) -> Option<f64> {
    let estimate = estimate.filter(|estimate| *estimate > 0)?;
    Some((rows as f64 / estimate.max(rows) as f64).min(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, attribute: i16, type_oid: u32, collation: u32) -> KeyColumn {
        KeyColumn { name: name.into(), attribute, type_oid, collation }
    }

    #[test]
    fn c043_a_renamed_key_is_the_same_and_a_changed_one_is_not() {
        let key = column("id", 1, 23, 0);
        assert_eq!(key, column("number", 1, 23, 0));
        assert_ne!(key, column("id", 2, 23, 0));
        assert_ne!(key, column("id", 1, 20, 0));
        assert_ne!(column("id", 1, 25, 100), column("id", 1, 25, 950), "another order of sorting");
    }

    #[test]
    fn cursors_survive_their_text_form() {
        let cursor = Cursor { key: vec![column("id", 1, 25, 100)], values: vec!["a\"\u{0}é".into()] };
        let text = serde_json::to_string(&cursor).unwrap();
        assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
    }

    #[test]
    fn c068_a_page_shrinks_to_the_time_limit_and_stops_at_its_floor() {
        let mut page = Page::new(PageSettings { most: 10_000, floor: 100, ..PageSettings::default() });
        let mut halvings = 0;
        while page.shrink() {
            halvings += 1;
        }
        assert_eq!((page.limit(), halvings), (100, 5));
        for _ in 0..20 {
            page.learn(u64::from(page.limit()), page.limit() as usize, Duration::from_micros(1));
        }
        assert_eq!(page.limit(), 10_000);
        page.learn(10_000, 10_000, Duration::from_secs(5));
        assert_eq!(page.limit(), 1000);
    }

    #[test]
    fn c069_wide_rows_make_small_pages() {
        let mut page = Page::new(PageSettings::default());
        page.learn(8, 8 << 20, Duration::from_millis(50));
        assert_eq!(page.limit(), 4);
        assert!(page.expected_bytes() <= 4 << 20);
        page.learn(1, 100 << 20, Duration::from_millis(50));
        assert_eq!(page.limit(), 1, "never none");
    }

    #[test]
    fn c067_a_chunk_size_of_nothing_means_one_row() {
        let page = Page::new(PageSettings { most: 0, floor: 0, ..PageSettings::default() });
        assert_eq!(page.limit(), 1);
    }

    #[test]
    fn progress_is_never_done_before_the_end() {
        assert_eq!(share_done(10, None), None);
        assert_eq!(share_done(10, Some(0)), None);
        assert_eq!(share_done(25, Some(100)), Some(0.25));
        assert_eq!(share_done(500, Some(100)), Some(0.99));
    }
}
