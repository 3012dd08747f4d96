//! Watermarks: what a backfill writes into the WAL around the reading of a chunk.
//!
//! A marker is the content of a *transactional* logical message (`pg_logical_emit_message(true,
//! 'anabranch', …)`). It is recognised by its content where the stream shows it; the position that the
//! emit function returned is never used. Each reading attempt has a number that no other attempt of this
//! or of any earlier process has, so that the marker of an abandoned reading closes no other window.

/// The prefix of every logical message of Anabranch.
pub const MESSAGE_PREFIX: &str = "anabranch";

const WORD: &str = "backfill/1";

/// Which reading of which chunk: unique for ever within an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// The life of the machine: the number of the term, or random. No two machines of one installation
    /// may share it.
    pub incarnation: u64,
    /// Counts the readings of one machine.
    pub serial: u64,
}

/// Before or after the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkerKind {
    /// Committed before the chunk's snapshot is taken.
    Low,
    /// Committed after the chunk was read.
    High,
}

/// One watermark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The installation (its slot's name) that it belongs to.
    pub installation: String,
    /// The run, a UUID's text.
    pub run: String,
    /// The chunk within the run.
    pub chunk: u64,
    /// The reading of the chunk.
    pub attempt: Attempt,
    /// Low or high.
    pub kind: MarkerKind,
}

impl Marker {
    /// The message's content: ASCII text, as long as the run is a UUID.
    #[must_use]
    pub fn encode(&self) -> String {
        let kind = match self.kind {
            MarkerKind::Low => "low",
            MarkerKind::High => "high",
        };
        let Attempt { incarnation, serial } = self.attempt;
        format!("{WORD} {kind} {incarnation} {serial} {} {} {}", self.chunk, self.run, self.installation)
    }

    /// Reads a message's content. Everything that is not a whole marker of `installation` is none: other
    /// programs' messages, nonsense under our own prefix, another installation's markers.
    #[must_use]
    pub fn parse(content: &[u8], installation: &str) -> Option<Self> {
        let rest = content.strip_prefix(WORD.as_bytes())?.strip_prefix(b" ")?;
        let mut parts = std::str::from_utf8(rest).ok()?.splitn(6, ' ');
        let kind = match parts.next()? {
            "low" => MarkerKind::Low,
            "high" => MarkerKind::High,
            _ => return None,
        };
        let incarnation = parts.next()?.parse().ok()?;
        let serial = parts.next()?.parse().ok()?;
        let chunk = parts.next()?.parse().ok()?;
        let run = parts.next().filter(|run| !run.is_empty())?.to_owned();
        let installation = parts.next().filter(|name| *name == installation)?.to_owned();
        Some(Self { installation, run, chunk, attempt: Attempt { incarnation, serial }, kind })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marker(kind: MarkerKind) -> Marker {
        Marker {
            installation: "anabranch".into(),
            run: "6f9619ff-8b86-4d11-b42d-00cf4fc964ff".into(),
            chunk: 17,
            attempt: Attempt { incarnation: u64::MAX, serial: 3 },
            kind,
        }
    }

    #[test]
    fn markers_round_trip() {
        for kind in [MarkerKind::Low, MarkerKind::High] {
            let marker = marker(kind);
            assert_eq!(Marker::parse(marker.encode().as_bytes(), "anabranch"), Some(marker));
        }
    }

    #[test]
    fn c050_foreign_messages_and_nonsense_are_no_markers() {
        let good = marker(MarkerKind::Low).encode();
        let long = vec![b'y'; 1_000_000];
        let cases: [&[u8]; 9] = [
            b"",
            b"x",
            b"backfill/1",
            b"backfill/1 low",
            b"backfill/1 low 1 2 x run anabranch",
            b"backfill/1 mid 1 2 3 run anabranch",
            b"backfill/1 low 1 2 3  anabranch",
            b"backfill/1 low 1 2 3 \xff\xfe anabranch",
            &long,
        ];
        for content in cases {
            assert_eq!(Marker::parse(content, "anabranch"), None);
        }
        for cut in 0..good.len() {
            assert_eq!(Marker::parse(&good.as_bytes()[..cut], "anabranch"), None, "cut at {cut}");
        }
        assert_eq!(Marker::parse(format!("{good} ").as_bytes(), "anabranch"), None);
    }

    #[test]
    fn c051_another_installations_markers_are_ignored() {
        let content = marker(MarkerKind::High).encode();
        assert_eq!(Marker::parse(content.as_bytes(), "anabranch_2"), None);
        assert_eq!(Marker::parse(content.as_bytes(), "anabranc"), None);
        assert_eq!(Marker::parse(content.as_bytes(), ""), None);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(content in proptest::collection::vec(any::<u8>(), 0..80), keep in 0..12_usize) {
            let mut bytes = b"backfill/1 low"[..keep].to_vec();
            bytes.extend(content);
            let _ = Marker::parse(&bytes, "anabranch");
        }
    }
}
