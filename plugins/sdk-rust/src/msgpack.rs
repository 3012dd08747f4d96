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
    bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn fail<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed { at: self.at, expected })
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        match self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => self.fail("more bytes"),
        }
    }

    #[inline]
    fn number<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N)?);
        Ok(number)
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

    /// JSON text (ext 1); none where it is something else.
    #[inline]
    pub(crate) fn json(&mut self) -> Result<Option<&'a str>, Malformed> {
        Ok(match self.next()? {
            Token::Ext(1, bytes) => Some(Self::utf8(bytes)),
            _ => None,
        })
    }

    /// Whether nil comes next.
    #[inline]
    pub(crate) fn at_nil(&self) -> bool {
        self.bytes.get(self.at) == Some(&0xc0)
    }

    fn ext(&mut self, len: usize) -> Result<Token<'a>, Malformed> {
        let [kind] = self.number()?;
        Ok(Token::Ext(kind as i8, self.take(len)?))
    }

    /// Reads the next value, or the header of the next array or map.
    #[inline]
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
    pub(crate) fn skip(&mut self) -> Result<(), Malformed> {
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            match self.next()? {
                Token::Array(len) => left = left.saturating_add(len),
                Token::Map(len) => left = left.saturating_add(len.saturating_mul(2)),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn array(&mut self) -> Result<usize, Malformed> {
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

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        match self.next()? {
            Token::Str(text) => Ok(text),
            _ => self.fail("a string"),
        }
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<&'a str>, Malformed> {
        match self.next()? {
            Token::Nil => Ok(None),
            Token::Str(text) => Ok(Some(text)),
            _ => self.fail("a string or nil"),
        }
    }

    pub(crate) fn unsigned(&mut self) -> Result<u64, Malformed> {
        match self.next()? {
            Token::Unsigned(number) => Ok(number),
            _ => self.fail("an unsigned integer"),
        }
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        match self.next()? {
            Token::Signed(number) => Ok(number),
            Token::Unsigned(number) if i64::try_from(number).is_ok() => Ok(number as i64),
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
