//! Received bytes, cut into the frames of Postgres's protocol: one growing buffer that hands out whole frames.
//!
//! Guarantees: a cancelled read loses nothing; a frame is borrowed, never copied; where the bytes were cut on their
//! way makes no difference; memory grows with what has arrived, not with what a header announces. Must never: hand
//! out a part of a frame, or read on behind a header that cannot be.

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::error::Error;

/// Longer messages are refused. The server's own limit is 1 GiB less one byte of content, to which frame
/// and replication headers come.
const MESSAGE_LIMIT: usize = (1 << 30) + (1 << 20);
const READ_AHEAD: usize = 256 * 1024;

/// Received bytes, cut into frames.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Length of the frame that was handed out last; it leaves the buffer with the next call.
    taken: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

impl Frames {
    /// Nothing received yet.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: BytesMut::with_capacity(READ_AHEAD), taken: 0 }
    }

    /// The whole length of the first frame not yet handed out, once its header is there.
    fn expected(&self) -> Result<Option<usize>, Error> {
        let Some(&[tag, a, b, c, d]) = self.buffer[self.taken..].first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if !(4..=MESSAGE_LIMIT).contains(&length) {
            return Err(Error::protocol(format!(
                "a message of type `{}` says that it has {length} bytes, which cannot be",
                tag.escape_ascii()
            )));
        }
        Ok(Some(length + 1))
    }

    /// How many bytes the next frame says that it has, once its header is there.
    ///
    /// # Errors
    /// The next header cannot be.
    pub fn announced(&self) -> Result<Option<usize>, Error> {
        self.expected()
    }

    /// Whether [`next`](Self::next) has a frame to give.
    ///
    /// # Errors
    /// The next header cannot be.
    pub fn ready(&self) -> Result<bool, Error> {
        Ok(self.expected()?.is_some_and(|length| self.buffer.len() - self.taken >= length))
    }

    /// The type of the frame that [`next`](Self::next) will give.
    ///
    /// # Errors
    /// The next header cannot be.
    pub fn peek(&self) -> Result<Option<u8>, Error> {
        Ok(self.ready()?.then(|| self.buffer[self.taken]))
    }

    /// The next frame: its type and its content.
    ///
    /// # Errors
    /// The next header cannot be.
    #[allow(clippy::should_implement_trait, reason = "it lends from itself, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<(u8, &[u8])>, Error> {
        if !self.ready()? {
            return Ok(None);
        }
        self.buffer.advance(std::mem::take(&mut self.taken));
        let Some(length) = self.expected()? else { return Ok(None) };
        self.taken = length;
        Ok(Some((self.buffer[0], &self.buffer[5..length])))
    }

    /// Reads what is there, at least one byte. Cancel-safe.
    ///
    /// # Errors
    /// The next header cannot be, reading fails, or the other side has ended.
    pub async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<(), Error> {
        self.buffer.advance(std::mem::take(&mut self.taken));
        let missing = self.expected()?.map_or(0, |length| length.saturating_sub(self.buffer.len()));
        if self.buffer.is_empty() && self.buffer.capacity() > 16 * READ_AHEAD {
            // A giant message is over: give its memory back.
            self.buffer = BytesMut::new();
        }
        // A header promises much and cheaply: as much again as there is, so that a giant is copied a few times.
        let trusted = missing.min(self.buffer.len().max(READ_AHEAD));
        self.buffer.reserve(trusted.max(READ_AHEAD / 4));
        if from.read_buf(&mut self.buffer).await? == 0 {
            return Err(Error::closed("the server ended it"));
        }
        Ok(())
    }

    /// How many bytes of memory it holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::ErrorKind;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[tokio::test]
    async fn frames_come_whole_whatever_the_pieces() {
        let bytes: Vec<u8> = [frame(b'd', b"one"), frame(b'd', b""), frame(b'd', &vec![7; 300_000])].concat();
        for piece in [1, 3, 4096, usize::MAX] {
            let mut frames = Frames::new();
            let mut seen = Vec::new();
            for mut part in bytes.chunks(piece.min(bytes.len())) {
                while !part.is_empty() {
                    frames.fill(&mut part).await.unwrap();
                }
                while let Some((tag, body)) = frames.next().unwrap() {
                    seen.push((tag, body.len()));
                }
            }
            assert_eq!(seen, [(b'd', 3), (b'd', 0), (b'd', 300_000)]);
        }
    }

    #[tokio::test]
    async fn impossible_lengths_are_refused() {
        for bytes in [&b"d\0\0\0\x03"[..], b"d\xff\xff\xff\xff", b"HTTP/1.1 400"] {
            let mut frames = Frames::new();
            let mut from = bytes;
            frames.fill(&mut from).await.unwrap();
            assert_eq!(frames.next().unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    #[tokio::test]
    async fn a_header_that_promises_a_gigabyte_takes_no_memory_for_it() {
        let mut frames = Frames::new();
        let mut promise = &b"d\x3f\xff\xff\xff, and little comes"[..];
        while !promise.is_empty() {
            frames.fill(&mut promise).await.unwrap();
        }
        assert!(frames.fill(&mut &b"."[..]).await.is_ok());
        assert!(frames.capacity() <= 4 * READ_AHEAD, "{}", frames.capacity());
    }
}
