//! Positions in the write-ahead log.

use std::{fmt, str::FromStr};

/// A byte position in the write-ahead log, written as Postgres writes it: `16/B374D848`
/// (Postgres documentation, "pg_lsn Type").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position that Postgres calls invalid; confirming it moves nothing.
    pub const ZERO: Lsn = Lsn(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text is not a position of the form `16/B374D848`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a WAL position; one looks like `16/B374D848`")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = |half: &str| {
            let plain = (1..=8).contains(&half.len()) && half.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(half, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Lsn(parse(high)? << 32 | parse(low)?)))
            .ok_or_else(|| ParseLsnError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "0/1A"] {
            assert_eq!(text.parse::<Lsn>().map(|lsn| lsn.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn malformed_positions_are_refused() {
        for text in ["", "/", "1", "1/", "/1", "G/0", "1/123456789", "+1/0", "1/0/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
