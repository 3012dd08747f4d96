//! The decoder itself: a cursor over one message.

use std::{fmt, str};

use super::{ColumnMessage, Columns, Message, Oids, OldKind, OldTuple, RelationMessage, Tuple};
use crate::{
    model::{Lsn, ReplicaIdentity, Xid},
    pgoutput::frame::unix_micros,
};

/// A message that is not as the protocol says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pgoutput message {} is malformed at byte {offset} of {length}: {problem}; \
     the server's protocol and this program do not fit, or the connection is corrupt", Kind(*kind)
)]
pub struct DecodeError {
    /// The first byte of the message; 0 when it is empty.
    pub kind: u8,
    /// Where in the message.
    pub offset: usize,
    /// The message's length.
    pub length: usize,
    /// What is wrong.
    pub problem: &'static str,
}

/// Names a message kind.
struct Kind(u8);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            b'B' => "Begin",
            b'C' => "Commit",
            b'O' => "Origin",
            b'R' => "Relation",
            b'Y' => "Type",
            b'I' => "Insert",
            b'U' => "Update",
            b'D' => "Delete",
            b'T' => "Truncate",
            b'M' => "Message",
            b'S' => "Stream Start",
            b'E' => "Stream Stop",
            b'c' => "Stream Commit",
            b'A' => "Stream Abort",
            _ => return write!(f, "0x{:02x}", self.0),
        };
        f.write_str(name)
    }
}

/// Decodes the messages of one connection, in order. It remembers only whether a streamed block is open,
/// since the messages inside one carry a transaction id.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    in_stream: bool,
}

impl Decoder {
    /// A decoder for a fresh connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes one message: the data of one [`Frame::XLogData`](crate::pgoutput::Frame::XLogData).
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let mut reader = Reader { bytes, at: 0 };
        let message = reader.message(self.in_stream)?;
        if reader.at != bytes.len() {
            return Err(reader.error("there are bytes after its end"));
        }
        match message {
            Message::StreamStart { .. } => self.in_stream = true,
            Message::StreamStop => self.in_stream = false,
            _ => {}
        }
        Ok(message)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[cold]
    fn error_at(&self, offset: usize, problem: &'static str) -> DecodeError {
        let kind = self.bytes.first().copied().unwrap_or(0);
        DecodeError { kind, offset, length: self.bytes.len(), problem }
    }

    #[cold]
    fn error(&self, problem: &'static str) -> DecodeError {
        self.error_at(self.at, problem)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let chunk = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let chunk = *chunk.ok_or_else(|| self.error("it is cut off"))?;
        self.at += N;
        Ok(chunk)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let slice = rest.get(..length).ok_or_else(|| self.error("it is cut off"))?;
        self.at += length;
        Ok(slice)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_be_bytes)
    }

    fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.take().map(u64::from_be_bytes).map(Lsn)
    }

    fn time(&mut self) -> Result<i64, DecodeError> {
        self.take().map(i64::from_be_bytes).map(unix_micros)
    }

    fn flag(&mut self) -> Result<bool, DecodeError> {
        self.u8().map(|flags| flags & 1 != 0)
    }

    /// Bytes up to a NUL, which is passed over.
    fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = memchr::memchr(0, rest).ok_or_else(|| self.error("a name has no end"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn name(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.at;
        let bytes = self.string()?;
        str::from_utf8(bytes).map_err(|_| self.error_at(start, "a name is not UTF-8"))
    }

    fn tuple(&mut self) -> Result<Tuple<'a>, DecodeError> {
        match Tuple::walk(self.bytes, self.at) {
            Ok((tuple, end)) => {
                self.at = end;
                Ok(tuple)
            }
            Err(fault) => Err(self.error_at(fault.at, fault.problem)),
        }
    }

    fn message(&mut self, in_stream: bool) -> Result<Message<'a>, DecodeError> {
        let kind = match self.bytes.first() {
            Some(kind) => *kind,
            None => return Err(self.error("it is empty")),
        };
        self.at = 1;
        let xid = match kind {
            b'I' | b'U' | b'D' | b'T' | b'R' | b'Y' | b'M' if in_stream => Some(self.u32()?),
            _ => None,
        };
        match kind {
            b'I' => self.insert(xid),
            b'U' => self.update(xid),
            b'D' => self.delete(xid),
            b'T' => self.truncate(xid),
            b'R' => self.relation(xid),
            b'Y' => {
                let oid = self.u32()?;
                Ok(Message::Type { xid, oid, namespace: self.name()?, name: self.name()? })
            }
            b'M' => self.logical(xid),
            b'B' => {
                Ok(Message::Begin { final_lsn: self.lsn()?, commit_time: self.time()?, xid: self.u32()? })
            }
            b'C' => {
                self.u8()?;
                Ok(Message::Commit {
                    commit_lsn: self.lsn()?,
                    end_lsn: self.lsn()?,
                    commit_time: self.time()?,
                })
            }
            b'O' => Ok(Message::Origin { commit_lsn: self.lsn()?, name: self.string()? }),
            b'S' => Ok(Message::StreamStart { xid: self.u32()?, first_segment: self.flag()? }),
            b'E' => Ok(Message::StreamStop),
            b'c' => self.stream_commit(),
            b'A' => self.stream_abort(),
            _ => Err(self.error_at(0, "its kind is unknown")),
        }
    }

    fn insert(&mut self, xid: Option<Xid>) -> Result<Message<'a>, DecodeError> {
        let relation = self.u32()?;
        if self.u8()? != b'N' {
            return Err(self.error_at(self.at - 1, "the new tuple is missing"));
        }
        Ok(Message::Insert { xid, relation, new: self.tuple()? })
    }

    fn old(&mut self, kind: u8) -> Result<OldTuple<'a>, DecodeError> {
        let kind = match kind {
            b'K' => OldKind::Key,
            b'O' => OldKind::Full,
            _ => return Err(self.error_at(self.at - 1, "a tuple is neither old nor new")),
        };
        Ok(OldTuple { kind, tuple: self.tuple()? })
    }

    fn update(&mut self, xid: Option<Xid>) -> Result<Message<'a>, DecodeError> {
        let relation = self.u32()?;
        let kind = self.u8()?;
        if kind == b'N' {
            return Ok(Message::Update { xid, relation, old: None, new: self.tuple()? });
        }
        let old = self.old(kind)?;
        if self.u8()? != b'N' {
            return Err(self.error_at(self.at - 1, "the new tuple is missing"));
        }
        Ok(Message::Update { xid, relation, old: Some(old), new: self.tuple()? })
    }

    fn delete(&mut self, xid: Option<Xid>) -> Result<Message<'a>, DecodeError> {
        let relation = self.u32()?;
        let kind = self.u8()?;
        Ok(Message::Delete { xid, relation, old: self.old(kind)? })
    }

    fn truncate(&mut self, xid: Option<Xid>) -> Result<Message<'a>, DecodeError> {
        let count = self.u32()? as usize;
        let flags = self.u8()?;
        let length = count.checked_mul(4).ok_or_else(|| self.error("it lists too many tables"))?;
        let relations = Oids { body: self.slice(length)? };
        Ok(Message::Truncate { xid, cascade: flags & 1 != 0, restart_identity: flags & 2 != 0, relations })
    }

    fn relation(&mut self, xid: Option<Xid>) -> Result<Message<'a>, DecodeError> {
        let oid = self.u32()?;
        let namespace = self.name()?;
        let name = self.name()?;
        let replica_identity = match self.u8()? {
            b'd' => ReplicaIdentity::Default,
            b'n' => ReplicaIdentity::Nothing,
            b'f' => ReplicaIdentity::Full,
            b'i' => ReplicaIdentity::Index,
            _ => return Err(self.error_at(self.at - 1, "the replica identity is unknown")),
        };
        let count = self.u16()?;
        let start = self.at;
        for _ in 0..count {
            self.column()?;
        }
        let columns = Columns { count, body: &self.bytes[start..self.at] };
        Ok(Message::Relation(RelationMessage { xid, oid, namespace, name, replica_identity, columns }))
    }

    fn column(&mut self) -> Result<ColumnMessage<'a>, DecodeError> {
        Ok(ColumnMessage {
            identity: self.flag()?,
            name: self.name()?,
            type_oid: self.u32()?,
            type_modifier: self.take().map(i32::from_be_bytes)?,
        })
    }

    fn logical(&mut self, xid: Option<Xid>) -> Result<Message<'a>, DecodeError> {
        let transactional = self.flag()?;
        let lsn = self.lsn()?;
        let prefix = self.string()?;
        let length = self.u32()? as usize;
        Ok(Message::Logical { xid, transactional, lsn, prefix, content: self.slice(length)? })
    }

    fn stream_commit(&mut self) -> Result<Message<'a>, DecodeError> {
        let xid = self.u32()?;
        self.u8()?;
        Ok(Message::StreamCommit {
            xid,
            commit_lsn: self.lsn()?,
            end_lsn: self.lsn()?,
            commit_time: self.time()?,
        })
    }

    fn stream_abort(&mut self) -> Result<Message<'a>, DecodeError> {
        let xid = self.u32()?;
        let subxid = self.u32()?;
        let abort = if self.at == self.bytes.len() { None } else { Some((self.lsn()?, self.time()?)) };
        Ok(Message::StreamAbort { xid, subxid, abort })
    }
}

/// The columns in the body of a relation message that was decoded before.
pub(super) fn columns<'a>(body: &'a [u8]) -> impl Iterator<Item = ColumnMessage<'a>> + use<'a> {
    let mut reader = Reader { bytes: body, at: 0 };
    std::iter::from_fn(move || reader.column().ok())
}
