//! Replies in MessagePack (`wit/v1/payload-msgpack.md`).

use super::reply::{Answers, Problem, ReplyProblem, guest_failure};
use crate::{
    model::{EmittedDocument, FailureClass},
    plugin::json,
};

/// Reads what replies are made of.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

/// A str or bin: its span in the reply.
type Span = (usize, usize);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn fail<T>(&self, problem: &str) -> Result<T, ReplyProblem> {
        Err(ReplyProblem::at(self.at, problem))
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], ReplyProblem> {
        let Some(taken) = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) else {
            return self.fail("it ends too early");
        };
        self.at += len;
        Ok(taken)
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, ReplyProblem> {
        Ok(self.take(1)?[0])
    }

    #[inline]
    fn length(&mut self, width: usize) -> Result<usize, ReplyProblem> {
        Ok(self.take(width)?.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
    }

    #[inline]
    pub(super) fn array(&mut self) -> Result<usize, ReplyProblem> {
        match self.byte()? {
            short @ 0x90..=0x9f => Ok(usize::from(short & 15)),
            0xdc => self.length(2),
            0xdd => self.length(4),
            _ => {
                self.at -= 1;
                self.fail("expected an array")
            }
        }
    }

    #[inline]
    pub(super) fn small(&mut self) -> Result<u64, ReplyProblem> {
        match self.byte()? {
            small @ 0..=0x7f => Ok(u64::from(small)),
            marker @ 0xcc..=0xd3 => {
                let width = 1 << ((marker - 0xcc) % 4);
                Ok(self.length(width)? as u64)
            }
            _ => {
                self.at -= 1;
                self.fail("expected a whole number, such as a tag")
            }
        }
    }

    /// A str or bin; none for nil.
    #[inline]
    fn bytes(&mut self) -> Result<Option<Span>, ReplyProblem> {
        let len = match self.byte()? {
            0xc0 => return Ok(None),
            short @ 0xa0..=0xbf => usize::from(short & 31),
            0xc4 | 0xd9 => self.length(1)?,
            0xc5 | 0xda => self.length(2)?,
            0xc6 | 0xdb => self.length(4)?,
            _ => {
                self.at -= 1;
                return self.fail("expected a str or bin");
            }
        };
        let start = self.at;
        self.take(len)?;
        Ok(Some((start, len)))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, ReplyProblem> {
        let start = self.at;
        let Some((from, len)) = self.bytes()? else { return Err(ReplyProblem::at(start, "expected a str")) };
        std::str::from_utf8(&self.bytes[from..from + len]).map_err(|_| ReplyProblem::at(from, "not UTF-8"))
    }

    pub(super) fn class(&mut self) -> Result<FailureClass, ReplyProblem> {
        let at = self.at;
        match self.text()? {
            "retry" => Ok(FailureClass::Retry),
            "poison" => Ok(FailureClass::Poison),
            "fatal" => Ok(FailureClass::Fatal),
            _ => Err(ReplyProblem::at(at, "expected `retry`, `poison` or `fatal`")),
        }
    }

    /// Takes nil, where it comes next.
    pub(super) fn take_nil(&mut self) -> bool {
        let is_nil = self.bytes.get(self.at) == Some(&0xc0);
        self.at += usize::from(is_nil);
        is_nil
    }

    /// Steps over one whole value.
    pub(super) fn skip(&mut self) -> Result<(), ReplyProblem> {
        // Each value is at least one byte, so that what is announced and not there ends this soon.
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            let payload = match self.byte()? {
                0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => 0,
                map @ 0x80..=0x8f => {
                    left += 2 * usize::from(map & 15);
                    0
                }
                array @ 0x90..=0x9f => {
                    left += usize::from(array & 15);
                    0
                }
                text @ 0xa0..=0xbf => usize::from(text & 31),
                0xc4 | 0xd9 => self.length(1)?,
                0xc5 | 0xda => self.length(2)?,
                0xc6 | 0xdb => self.length(4)?,
                0xc7 => self.length(1)? + 1,
                0xc8 => self.length(2)? + 1,
                0xc9 => self.length(4)? + 1,
                0xca => 4,
                0xcb => 8,
                number @ 0xcc..=0xd3 => 1 << ((number - 0xcc) % 4),
                ext @ 0xd4..=0xd8 => (1 << (ext - 0xd4)) + 1,
                array @ (0xdc | 0xdd) => {
                    left += self.length(if array == 0xdc { 2 } else { 4 })?;
                    0
                }
                map @ (0xde | 0xdf) => {
                    left += 2 * self.length(if map == 0xde { 2 } else { 4 })?;
                    0
                }
                0xc1 => {
                    self.at -= 1;
                    return self.fail("no MessagePack value begins like this");
                }
            };
            self.take(payload)?;
        }
        Ok(())
    }
}

/// Reads a whole reply.
pub(super) fn read(reply: &[u8], answers: &mut Answers<'_>) -> Result<(), ReplyProblem> {
    answers.begin(reply.len())?;
    let mut reader = Reader::new(reply);
    let count = reader.array()?;
    answers.announce(count)?;
    for _ in 0..count {
        outcome(&mut reader, answers)?;
    }
    if reader.at < reply.len() {
        return reader.fail("something follows the outcomes");
    }
    Ok(())
}

#[inline]
fn outcome(reader: &mut Reader<'_>, answers: &mut Answers<'_>) -> Result<(), ReplyProblem> {
    let start = reader.at;
    let len = reader.array()?;
    if len == 0 {
        return Err(ReplyProblem::at(start, "an outcome is an array that begins with its tag"));
    }
    match (reader.small()?, len) {
        (0, 2) => emit(reader, answers),
        (1, 1) => answers.delete(),
        (2, 1) => answers.skip(),
        (3, 4) => {
            let class = reader.class()?;
            let code = reader.text()?;
            answers.failed(guest_failure(class, code, reader.text()?))
        }
        _ => Err(ReplyProblem::at(start, "no outcome has this tag and length")),
    }
}

#[inline]
fn emit(reader: &mut Reader<'_>, answers: &mut Answers<'_>) -> Result<(), ReplyProblem> {
    let first = answers.begin_emit();
    let mut problem = None;
    for _ in 0..reader.array()? {
        let start = reader.at;
        if reader.array()? != 3 {
            return Err(ReplyProblem::at(start, "a document is an array of id, destination and body"));
        }
        let id = reader.bytes()?;
        let destination = reader.bytes()?;
        let start = reader.at;
        let Some(body) = reader.bytes()? else { return Err(ReplyProblem::at(start, "expected a document")) };
        if problem.is_none() {
            problem = document(reader.bytes, id, destination, body)
                .and_then(|document| answers.document(first, document).map_or(Ok(()), Err))
                .err();
        }
    }
    answers.end_emit(first, reader.bytes, problem)
}

#[inline]
fn document(
    reply: &[u8],
    id: Option<Span>,
    destination: Option<Span>,
    body: Span,
) -> Result<EmittedDocument, Problem> {
    let narrow = |(start, len): Span| -> (u32, u32) {
        // `begin` refused replies beyond 32 bits.
        (u32::try_from(start).unwrap_or(u32::MAX), u32::try_from(len).unwrap_or(u32::MAX))
    };
    let text = |(start, len): Span, what: &'static str| {
        std::str::from_utf8(&reply[start..start + len]).map_err(|_| Problem::Utf8(what))
    };
    if let Some(id) = id
        && text(id, "an id")?.is_empty()
    {
        return Err(Problem::EmptyId);
    }
    if let Some(destination) = destination {
        text(destination, "a destination")?;
    }
    json::validate_bytes(&reply[body.0..body.0 + body.1]).map_err(|invalid| match invalid {
        json::Invalid::Utf8 => Problem::Utf8("a document"),
        json::Invalid::Json(error) => Problem::Json(error),
    })?;
    Ok(EmittedDocument { id: id.map(narrow), destination: destination.map(narrow), body: narrow(body) })
}
