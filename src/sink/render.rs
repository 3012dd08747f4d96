//! The pieces of JSON that text sinks write around documents. Bodies go through untouched.

use std::io::Write as _;

use crate::model::{DocumentOperation, DocumentView};

/// The word for an operation in envelopes and lines.
pub(super) fn operation(operation: DocumentOperation) -> &'static str {
    match operation {
        DocumentOperation::Upsert => "upsert",
        DocumentOperation::Delete => "delete",
    }
}

/// Appends a JSON string, quotes included.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            quoted @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', quoted]),
            control => push_text(out, format_args!("\\u{control:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Appends formatted text. Writing to a `Vec` cannot fail.
pub(super) fn push_text(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "a Vec takes everything");
}

/// Appends `,"lsn":"…","commit_time":"…"`.
pub(super) fn push_position(out: &mut Vec<u8>, document: &DocumentView<'_>) {
    push_text(out, format_args!(",\"lsn\":\"{}\",\"commit_time\":\"", document.entry.commit_lsn));
    push_timestamp(out, document.entry.commit_time);
    out.push(b'"');
}

/// Appends `,"document":…` where the document has a body.
pub(super) fn push_body(out: &mut Vec<u8>, document: &DocumentView<'_>) {
    if document.operation == DocumentOperation::Upsert {
        out.extend_from_slice(b",\"document\":");
        out.extend_from_slice(document.body.as_bytes());
    }
}

/// Appends microseconds since 1970-01-01 UTC as RFC 3339 with six decimals.
pub(super) fn push_timestamp(out: &mut Vec<u8>, microseconds: i64) {
    let seconds = microseconds.div_euclid(1_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = microseconds.rem_euclid(1_000_000);
    let date = format_args!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z");
    push_text(out, date);
}

/// The Gregorian date of a day since 1970-01-01 (the era algorithm of Howard Hinnant's "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timestamp(microseconds: i64) -> String {
        let mut out = Vec::new();
        push_timestamp(&mut out, microseconds);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn timestamps_are_rfc_3339() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(timestamp(-1), "1969-12-31T23:59:59.999999Z");
        assert_eq!(timestamp(951_782_400_000_001), "2000-02-29T00:00:00.000001Z");
        assert_eq!(timestamp(1_709_251_199_123_456), "2024-02-29T23:59:59.123456Z");
        assert_eq!(timestamp(4_107_542_399_000_000), "2100-02-28T23:59:59.000000Z");
    }

    proptest! {
        #[test]
        fn strings_are_json(text: String) {
            let mut out = Vec::new();
            push_string(&mut out, &text);
            let read: String = serde_json::from_slice(&out).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
