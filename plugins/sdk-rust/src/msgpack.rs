//! Just enough MessagePack: a borrowing reader and a writer into one buffer.

/// The bytes are not what was expected of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) at: usize,
    pub(crate) expected: &'static str,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Str(&'a str),
    Bin(&'a [u8]),
    Ext(i8, &'a [u8]),
    Array(usize),
    Map(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    /// What was not read yet.
    rest: &'a [u8],
    size: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, size: bytes.len() }
    }

    /// How many bytes were read.
    pub(crate) fn at(&self) -> usize {
        self.size - self.rest.len()
    }

    #[cold]
    fn fail<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed { at: self.at(), expected })
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => self.fail("more bytes"),
        }
    }

    #[inline]
    fn number<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        match self.rest.split_first_chunk() {
            Some((number, rest)) => {
                self.rest = rest;
                Ok(*number)
            }
            None => self.fail("more bytes"),
        }
    }

    /// Strings of a batch are UTF-8: the host says so (`wit/v1/payload-msgpack.md`), as it does for every
    /// `string` of the component model, which the generated bindings take unchecked too. Checking again costs
    /// more than all the rest of reading a row.
    #[inline]
    #[expect(unsafe_code, reason = "the host is the only writer of batches, and writes text as valid UTF-8")]
    fn utf8(bytes: &'a [u8]) -> &'a str {
        debug_assert!(core::str::from_utf8(bytes).is_ok());
        // SAFETY: see above.
        unsafe { core::str::from_utf8_unchecked(bytes) }
    }

    #[inline]
    fn str(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        Ok(Token::Str(Self::utf8(self.take(len)?)))
    }

    /// Takes what begins with a marker and a length, where that is what comes next; otherwise nothing is read. For
    /// what most of a batch is, this is all, and stands where it is used.
    #[inline]
    fn take_sized(&mut self, length: impl FnOnce(u8, &[u8]) -> Option<(usize, usize)>) -> Option<&'a [u8]> {
        let (&marker, rest) = self.rest.split_first()?;
        let (header, len) = length(marker, rest)?;
        let (taken, rest) = rest.get(header..)?.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    /// A string, where one comes next; otherwise nothing is read.
    #[inline]
    pub(crate) fn take_text(&mut self) -> Option<&'a str> {
        let bytes = self.take_sized(|marker, rest| {
            Some(match marker {
                0xa0..=0xbf => (0, usize::from(marker & 0x1f)),
                0xd9 => (1, usize::from(*rest.first()?)),
                0xda => (2, usize::from(u16::from_be_bytes(*rest.first_chunk()?))),
                _ => return None,
            })
        })?;
        Some(Self::utf8(bytes))
    }

    /// A truth value, where one comes next; otherwise nothing is read.
    #[inline]
    pub(crate) fn take_bool(&mut self) -> Option<bool> {
        let (&marker @ (0xc2 | 0xc3), rest) = self.rest.split_first()? else { return None };
        self.rest = rest;
        Some(marker == 0xc3)
    }

    /// An unsigned number, where one comes next; otherwise nothing is read.
    #[inline]
    fn take_unsigned(&mut self) -> Option<u64> {
        let (&marker, rest) = self.rest.split_first()?;
        let (number, rest) = match marker {
            0x00..=0x7f => (u64::from(marker), rest),
            0xcc => rest.split_first().map(|(n, rest)| (u64::from(*n), rest))?,
            0xcd => rest.split_first_chunk().map(|(n, rest)| (u64::from(u16::from_be_bytes(*n)), rest))?,
            0xce => rest.split_first_chunk().map(|(n, rest)| (u64::from(u32::from_be_bytes(*n)), rest))?,
            0xcf => rest.split_first_chunk().map(|(n, rest)| (u64::from_be_bytes(*n), rest))?,
            _ => return None,
        };
        self.rest = rest;
        Some(number)
    }

    /// A short list's length, where one comes next; otherwise nothing is read.
    #[inline]
    fn take_short(&mut self, fix: u8) -> Option<usize> {
        let (&marker, rest) = self.rest.split_first()?;
        if marker & 0xf0 != fix {
            return None;
        }
        self.rest = rest;
        Some(usize::from(marker & 0x0f))
    }

    /// JSON text (ext 1); none where it is something else.
    #[inline]
    pub(crate) fn json(&mut self) -> Result<Option<&'a str>, Malformed> {
        let bytes = self.take_sized(|marker, rest| match (marker, rest) {
            (0xc7, &[len, 1, ..]) => Some((2, usize::from(len))),
            (0xc8, &[high, low, 1, ..]) => Some((3, usize::from(u16::from_be_bytes([high, low])))),
            _ => None,
        });
        if let Some(bytes) = bytes {
            return Ok(Some(Self::utf8(bytes)));
        }
        Ok(match self.next()? {
            Token::Ext(1, bytes) => Some(Self::utf8(bytes)),
            _ => None,
        })
    }

    /// Whether nil comes next.
    #[inline]
    pub(crate) fn at_nil(&self) -> bool {
        self.rest.first() == Some(&0xc0)
    }

    fn ext(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        let [kind] = self.number()?;
        Ok(Token::Ext(kind as i8, self.take(len)?))
    }

    /// Takes nil, where it comes next.
    #[inline]
    pub(crate) fn take_nil(&mut self) -> bool {
        let [0xc0, rest @ ..] = self.rest else { return false };
        self.rest = rest;
        true
    }

    /// Reads the next value, or the header of the next array or map.
    pub(crate) fn next(&mut self) -> Result<Token<'a>, Malformed> {
        let [marker] = self.number()?;
        Ok(match marker {
            0x00..=0x7f => Token::Unsigned(u64::from(marker)),
            0x80..=0x8f => Token::Map(usize::from(marker & 0x0f)),
            0x90..=0x9f => Token::Array(usize::from(marker & 0x0f)),
            0xa0..=0xbf => self.str(usize::from(marker & 0x1f))?,
            0xc0 => Token::Nil,
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4 | 0xd9 | 0xc7 => {
                let len = usize::from(self.number::<1>()?[0]);
                self.sized(marker, len)?
            }
            0xc5 | 0xda | 0xc8 | 0xdc | 0xde => {
                let len = usize::from(u16::from_be_bytes(self.number()?));
                self.sized(marker, len)?
            }
            0xc6 | 0xdb | 0xc9 | 0xdd | 0xdf => {
                let len = u32::from_be_bytes(self.number()?) as usize;
                self.sized(marker, len)?
            }
            0xca => Token::Float(f64::from(f32::from_be_bytes(self.number()?))),
            0xcb => Token::Float(f64::from_be_bytes(self.number()?)),
            0xcc => Token::Unsigned(u64::from(self.number::<1>()?[0])),
            0xcd => Token::Unsigned(u64::from(u16::from_be_bytes(self.number()?))),
            0xce => Token::Unsigned(u64::from(u32::from_be_bytes(self.number()?))),
            0xcf => Token::Unsigned(u64::from_be_bytes(self.number()?)),
            0xd0 => Token::Signed(i64::from(i8::from_be_bytes(self.number()?))),
            0xd1 => Token::Signed(i64::from(i16::from_be_bytes(self.number()?))),
            0xd2 => Token::Signed(i64::from(i32::from_be_bytes(self.number()?))),
            0xd3 => Token::Signed(i64::from_be_bytes(self.number()?)),
            0xd4 => self.ext(1)?,
            0xd5 => self.ext(2)?,
            0xd6 => self.ext(4)?,
            0xd7 => self.ext(8)?,
            0xd8 => self.ext(16)?,
            0xe0..=0xff => Token::Signed(i64::from(marker as i8)),
            0xc1 => return self.fail("a MessagePack marker"),
        })
    }

    fn sized(&mut self, marker: u8, len: usize) -> Result<Token<'a>, Malformed> {
        match marker {
            0xc4..=0xc6 => Ok(Token::Bin(self.take(len)?)),
            0xc7..=0xc9 => self.ext(len),
            0xd9..=0xdb => self.str(len),
            0xdc | 0xdd => Ok(Token::Array(len)),
            _ => Ok(Token::Map(len)),
        }
    }

    /// Steps over one whole value.
    #[inline]
    pub(crate) fn skip(&mut self) -> Result<(), Malformed> {
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            // Every column of every row comes by here.
            if let Some((_, rest)) = self.short_ahead() {
                self.rest = rest;
                continue;
            }
            match self.next()? {
                Token::Array(len) => left = left.saturating_add(len),
                Token::Map(len) => left = left.saturating_add(len.saturating_mul(2)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The next value and what is behind it, where it is empty or a scalar whose header has at most one byte of length.
    #[inline]
    fn short_ahead(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (&marker, rest) = self.rest.split_first()?;
        let whole = match marker {
            0x00..=0x80 | 0x90 | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => 0,
            0xa0..=0xbf => usize::from(marker & 0x1f),
            0xc4 | 0xd9 => 1 + usize::from(*rest.first()?),
            0xc7 => 2 + usize::from(*rest.first()?),
            _ => return None,
        };
        rest.split_at_checked(whole)
    }

    #[inline]
    pub(crate) fn array(&mut self) -> Result<usize, Malformed> {
        if let Some(len) = self.take_short(0x90) {
            return Ok(len);
        }
        match self.next()? {
            Token::Array(len) => Ok(len),
            _ => self.fail("an array"),
        }
    }

    pub(crate) fn map(&mut self) -> Result<usize, Malformed> {
        match self.next()? {
            Token::Map(len) => Ok(len),
            _ => self.fail("a map"),
        }
    }

    #[inline]
    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        if let Some(text) = self.take_text() {
            return Ok(text);
        }
        match self.next()? {
            Token::Str(text) => Ok(text),
            _ => self.fail("a string"),
        }
    }

    #[inline]
    pub(crate) fn optional_text(&mut self) -> Result<Option<&'a str>, Malformed> {
        if let Some(text) = self.take_text() {
            return Ok(Some(text));
        }
        match self.next()? {
            Token::Nil => Ok(None),
            Token::Str(text) => Ok(Some(text)),
            _ => self.fail("a string or nil"),
        }
    }

    #[inline]
    pub(crate) fn unsigned(&mut self) -> Result<u64, Malformed> {
        if let Some(number) = self.take_unsigned() {
            return Ok(number);
        }
        match self.next()? {
            Token::Unsigned(number) => Ok(number),
            _ => self.fail("an unsigned integer"),
        }
    }

    #[inline]
    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        if let Some(number) = self.take_unsigned() {
            return i64::try_from(number).or_else(|_| self.fail("an integer"));
        }
        match self.next()? {
            Token::Signed(number) => Ok(number),
            _ => self.fail("an integer"),
        }
    }
}

/// Headers and scalars, appended to a buffer.
pub(crate) mod write {
    pub(crate) fn array(out: &mut Vec<u8>, len: usize) {
        sized(out, len, 0x90, 15, [0xdc, 0xdd]);
    }

    pub(crate) fn map(out: &mut Vec<u8>, len: usize) {
        sized(out, len, 0x80, 15, [0xde, 0xdf]);
    }

    fn sized(out: &mut Vec<u8>, len: usize, fix: u8, most: usize, wide: [u8; 2]) {
        if len <= most {
            out.push(fix | len as u8);
        } else if let Ok(len) = u16::try_from(len) {
            out.push(wide[0]);
            out.extend_from_slice(&len.to_be_bytes());
        } else {
            out.push(wide[1]);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }

    pub(crate) fn str(out: &mut Vec<u8>, text: &str) {
        match u8::try_from(text.len()) {
            Ok(len @ 32..) => out.extend_from_slice(&[0xd9, len]),
            _ => sized(out, text.len(), 0xa0, 31, [0xda, 0xdb]),
        }
        out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn optional_str(out: &mut Vec<u8>, text: Option<&str>) {
        match text {
            Some(text) => str(out, text),
            None => out.push(0xc0),
        }
    }

    pub(crate) fn unsigned(out: &mut Vec<u8>, number: u64) {
        if number < 0x80 {
            out.push(number as u8);
        } else {
            out.push(0xcf);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }

    pub(crate) fn signed(out: &mut Vec<u8>, number: i64) {
        match u64::try_from(number) {
            Ok(number) => unsigned(out, number),
            Err(_) => {
                out.push(0xd3);
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
    }

    pub(crate) fn float(out: &mut Vec<u8>, number: f64) {
        out.push(0xcb);
        out.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn ext(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
        out.push(0xc9);
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        out.push(kind);
        out.extend_from_slice(bytes);
    }

    /// A bin whose bytes `body` appends; framed after the fact.
    pub(crate) fn bin(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(&[0xc6, 0, 0, 0, 0]);
        let start = out.len();
        body(out);
        let len = (out.len() - start) as u32;
        out[start - 4..start].copy_from_slice(&len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every marker, each with several kinds of what may be behind it, also cut short.
    fn beginnings() -> impl Iterator<Item = Vec<u8>> {
        let behind: [&[u8]; 5] = [&[0, 1, 1], &[1, 1], &[0, 0, 0, 1, 1], &[2, 1, 0], &[0x7f; 9]];
        let kinds = behind.into_iter().flat_map(|head| {
            let whole = [head, &[b'a'; 40]].concat();
            [0, 1, 2, 3, 5, 9, whole.len()].map(|cut| whole[..cut.min(whole.len())].to_vec())
        });
        let kinds: Vec<_> = kinds.collect();
        (0..=0xff).flat_map(move |marker| {
            kinds.clone().into_iter().map(move |kind| [&[marker][..], &kind].concat())
        })
    }

    /// Reads with a short cut; checks that it gives what the long way does, and reads as far.
    fn check<T: PartialEq + std::fmt::Debug>(
        bytes: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
        expected: impl FnOnce(Token<'_>) -> Option<T>,
    ) {
        let (mut short, mut long) = (Reader::new(bytes), Reader::new(bytes));
        let expected = long.next().ok().and_then(expected);
        let read = read(&mut short);
        assert_eq!(read, expected, "{bytes:x?}");
        if read.is_some() {
            assert_eq!(short.at(), long.at(), "{bytes:x?}");
        }
    }

    #[test]
    fn short_cuts_read_what_the_long_way_does() {
        for bytes in beginnings() {
            let text = |token: Token<'_>| match token {
                Token::Str(text) => Some(text.to_owned()),
                _ => None,
            };
            check(&bytes, |reader| reader.text().ok().map(str::to_owned), text);
            check(
                &bytes,
                |reader| reader.optional_text().ok().map(|text| text.map(str::to_owned)),
                |token| if token == Token::Nil { Some(None) } else { text(token).map(Some) },
            );
            check(
                &bytes,
                |reader| reader.unsigned().ok(),
                |token| match token {
                    Token::Unsigned(number) => Some(number),
                    _ => None,
                },
            );
            check(
                &bytes,
                |reader| reader.signed().ok(),
                |token| match token {
                    Token::Unsigned(number) => i64::try_from(number).ok(),
                    Token::Signed(number) => Some(number),
                    _ => None,
                },
            );
            check(
                &bytes,
                |reader| reader.array().ok(),
                |token| match token {
                    Token::Array(len) => Some(len),
                    _ => None,
                },
            );
            check(
                &bytes,
                |reader| reader.json().ok().flatten().map(str::to_owned),
                |token| match token {
                    Token::Ext(1, bytes) => Some(Reader::utf8(bytes).to_owned()),
                    _ => None,
                },
            );
            check(
                &bytes,
                |reader| reader.take_nil().then_some(()),
                |token| (token == Token::Nil).then_some(()),
            );
            check(
                &bytes,
                |reader| reader.take_bool(),
                |token| match token {
                    Token::Bool(value) => Some(value),
                    _ => None,
                },
            );
        }
    }

    #[test]
    fn skipping_goes_as_far_as_reading() {
        fn read(reader: &mut Reader<'_>) -> Result<(), Malformed> {
            let inner = match reader.next()? {
                Token::Array(len) => len,
                Token::Map(len) => 2 * len,
                _ => 0,
            };
            (0..inner).try_for_each(|_| read(reader))
        }
        for bytes in beginnings() {
            let (mut skipped, mut whole) = (Reader::new(&bytes), Reader::new(&bytes));
            let expected = read(&mut whole);
            assert_eq!(skipped.skip().is_ok(), expected.is_ok(), "{bytes:x?}");
            if expected.is_ok() {
                assert_eq!(skipped.at(), whole.at(), "{bytes:x?}");
            }
        }
    }
}
