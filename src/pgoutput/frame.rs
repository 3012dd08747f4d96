//! What travels in CopyData while replicating (Postgres documentation, "Streaming Replication Protocol").
//!
//! Times on the wire are microseconds since 2000-01-01 UTC; everywhere else in Anabranch they are
//! microseconds since 1970-01-01 UTC. This module converts and nothing else does.

use crate::model::Lsn;

/// 2000-01-01 UTC in microseconds since 1970-01-01 UTC.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Microseconds since 1970 of a time on the wire. Saturates where the sum leaves 64 bits.
#[must_use]
pub fn unix_micros(postgres: i64) -> i64 {
    postgres.saturating_add(POSTGRES_EPOCH)
}

/// The time on the wire of microseconds since 1970. Saturates where the difference leaves 64 bits.
#[must_use]
pub fn postgres_micros(unix: i64) -> i64 {
    unix.saturating_sub(POSTGRES_EPOCH)
}

/// One payload from the walsender, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// `w`: one message of the output plugin.
    XLogData {
        /// Where its WAL begins; 0 for messages that no WAL made (Relation): never acknowledge from here.
        wal_start: Lsn,
        /// The end of WAL on the server.
        wal_end: Lsn,
        /// The server's clock, microseconds since 1970-01-01 UTC.
        server_time: i64,
        /// The message: see [`Decoder`](super::message::Decoder).
        data: &'a [u8],
    },
    /// `k`: the server is alive and has read WAL up to here.
    Keepalive {
        /// Everything before this was decoded and sent (or was of no interest).
        wal_end: Lsn,
        /// The server's clock, microseconds since 1970-01-01 UTC.
        server_time: i64,
        /// Whether the server wants a status update at once, before it hangs up.
        reply_requested: bool,
    },
}

/// A payload that is neither XLogData nor a keepalive, or is cut short.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// An unknown first byte.
    #[error(
        "replication payload of an unknown kind 0x{0:02x}; this server's protocol is newer than this program"
    )]
    Kind(u8),
    /// Too few bytes for its kind.
    #[error("replication payload `{kind}` has {length} bytes, which is too short; the connection is corrupt")]
    Short {
        /// `XLogData`, `keepalive` or `empty`.
        kind: &'static str,
        /// The bytes there were.
        length: usize,
    },
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_be_bytes(*chunk))
}

impl<'a> Frame<'a> {
    /// Reads the payload of one CopyData message.
    pub fn parse(payload: &'a [u8]) -> Result<Self, FrameError> {
        let short = |kind| FrameError::Short { kind, length: payload.len() };
        match payload.first() {
            None => Err(short("empty")),
            Some(b'w') => Self::xlog_data(payload).ok_or_else(|| short("XLogData")),
            Some(b'k') => Self::keepalive(payload).ok_or_else(|| short("keepalive")),
            Some(other) => Err(FrameError::Kind(*other)),
        }
    }

    fn xlog_data(payload: &'a [u8]) -> Option<Self> {
        Some(Self::XLogData {
            wal_start: Lsn(word(payload, 1)?),
            wal_end: Lsn(word(payload, 9)?),
            server_time: unix_micros(word(payload, 17)?.cast_signed()),
            data: payload.get(25..)?,
        })
    }

    fn keepalive(payload: &'a [u8]) -> Option<Self> {
        Some(Self::Keepalive {
            wal_end: Lsn(word(payload, 1)?),
            server_time: unix_micros(word(payload, 9)?.cast_signed()),
            reply_requested: *payload.get(17)? != 0,
        })
    }
}

/// `r`: how far we are. Only `flushed` moves the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyStatusUpdate {
    /// Received up to here.
    pub written: Lsn,
    /// Durable up to here: the server may forget everything before.
    pub flushed: Lsn,
    /// Visible up to here.
    pub applied: Lsn,
    /// Our clock, microseconds since 1970-01-01 UTC.
    pub client_time: i64,
    /// Whether we want a keepalive at once.
    pub reply: bool,
}

impl StandbyStatusUpdate {
    /// The payload for one CopyData message.
    #[must_use]
    pub fn encode(&self) -> [u8; 34] {
        let mut out = [0; 34];
        out[0] = b'r';
        out[1..9].copy_from_slice(&self.written.0.to_be_bytes());
        out[9..17].copy_from_slice(&self.flushed.0.to_be_bytes());
        out[17..25].copy_from_slice(&self.applied.0.to_be_bytes());
        out[25..33].copy_from_slice(&postgres_micros(self.client_time).to_be_bytes());
        out[33] = u8::from(self.reply);
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2024-01-31 12:00:00 UTC.
    const NOON: i64 = 1_706_702_400_000_000;

    fn xlog_data(data: &[u8]) -> Vec<u8> {
        let mut out = vec![b'w'];
        out.extend(0x16_B374_D848_u64.to_be_bytes());
        out.extend(0x16_B374_D900_u64.to_be_bytes());
        out.extend(postgres_micros(NOON).to_be_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn xlog_data_and_keepalive_are_read() {
        let bytes = xlog_data(b"abc");
        let expected = Frame::XLogData {
            wal_start: "16/B374D848".parse().unwrap(),
            wal_end: "16/B374D900".parse().unwrap(),
            server_time: NOON,
            data: b"abc",
        };
        assert_eq!(Frame::parse(&bytes), Ok(expected));
        let mut bytes = vec![b'k'];
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(postgres_micros(NOON).to_be_bytes());
        bytes.push(1);
        let expected = Frame::Keepalive { wal_end: Lsn(7), server_time: NOON, reply_requested: true };
        assert_eq!(Frame::parse(&bytes), Ok(expected));
    }

    #[test]
    fn short_and_unknown_payloads_are_refused() {
        let bytes = xlog_data(b"");
        for length in 0..bytes.len() {
            assert!(matches!(Frame::parse(&bytes[..length]), Err(FrameError::Short { .. })), "{length}");
        }
        assert!(Frame::parse(b"k1234567812345678").is_err());
        assert_eq!(Frame::parse(b"x"), Err(FrameError::Kind(b'x')));
    }

    #[test]
    fn a_status_update_is_what_the_documentation_says() {
        let update = StandbyStatusUpdate {
            written: Lsn(3),
            flushed: Lsn(2),
            applied: Lsn(1),
            client_time: POSTGRES_EPOCH + 5,
            reply: true,
        };
        let bytes = update.encode();
        assert_eq!(bytes[0], b'r');
        assert_eq!([bytes[8], bytes[16], bytes[24], bytes[32], bytes[33]], [3, 2, 1, 5, 1]);
    }

    proptest! {
        #[test]
        fn any_payload_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Frame::parse(&bytes);
        }

        #[test]
        fn times_round_trip(unix in -9_000_000_000_000_000_000_i64 + POSTGRES_EPOCH..i64::MAX) {
            prop_assert_eq!(unix_micros(postgres_micros(unix)), unix);
        }
    }
}
