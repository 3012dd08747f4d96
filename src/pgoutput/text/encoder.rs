//! The two encodings that values are written in.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{Problem, escape::push_json_string};

/// A list or a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Values.
    Array,
    /// Pairs of a string and a value.
    Map,
}

/// Writes values one after the other to the end of a buffer that is reused.
///
/// A container is `begin`, then for each entry `separate(index)` and the value (in a map: a string, `colon`,
/// the value), then `end` with the number of entries.
pub trait Encoder {
    /// What it writes to.
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// NULL.
    fn null(&mut self);
    /// A truth value.
    fn bool(&mut self, value: bool);
    /// An integer, exactly.
    fn integer(&mut self, value: i64);
    /// A number, given as JSON writes it.
    fn float(&mut self, text: &str) -> Result<(), Problem>;
    /// A string.
    fn string(&mut self, text: &str);
    /// Binary data, given in hex digits.
    fn hex(&mut self, digits: &[u8]) -> Result<(), Problem>;
    /// JSON text, which was validated. Text of Postgres's `json` (not `jsonb`) is as the application wrote
    /// it: it may hold line breaks between its tokens, duplicate keys, and escapes such as `\u0000` and lone
    /// surrogates inside its strings.
    fn json(&mut self, text: &str);
    /// Opens a container, and gives the mark for its end.
    fn begin(&mut self, container: Container) -> usize;
    /// Comes before the entry at `index`.
    fn separate(&mut self, index: usize);
    /// Stands between a key and its value.
    fn colon(&mut self);
    /// Closes the container of `count` entries.
    fn end(&mut self, container: Container, mark: usize, count: usize);
}

/// Both digits of each byte, or 255.
const HEX: [u8; 256] = {
    let mut table = [255; 256];
    let mut digit = 0_u8;
    while digit < 16 {
        table[b"0123456789abcdef"[digit as usize] as usize] = digit;
        table[b"0123456789ABCDEF"[digit as usize] as usize] = digit;
        digit += 1;
    }
    table
};

/// Appends the bytes that hex digits mean.
fn push_hex(digits: &[u8], out: &mut Vec<u8>) -> Result<(), Problem> {
    let (pairs, []) = digits.as_chunks::<2>() else { return Err("it has an odd number of hex digits") };
    let start = out.len();
    let mut bad = 0;
    out.extend(pairs.iter().map(|[high, low]| {
        let (high, low) = (HEX[usize::from(*high)], HEX[usize::from(*low)]);
        bad |= high | low;
        high << 4 | low & 15
    }));
    if bad > 15 {
        out.truncate(start);
        return Err("it has other characters than hex digits");
    }
    Ok(())
}

/// JSON, one value after the other; the caller separates them.
#[derive(Debug)]
pub struct JsonEncoder<'a> {
    /// What it writes to.
    pub out: &'a mut Vec<u8>,
}

impl<'a> JsonEncoder<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }
}

impl Encoder for JsonEncoder<'_> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn null(&mut self) {
        self.out.extend_from_slice(b"null");
    }

    fn bool(&mut self, value: bool) {
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    fn integer(&mut self, value: i64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            self.out.push(b'-');
        }
        self.out.extend_from_slice(&digits[at..]);
    }

    /// Postgres's shortest text that means the number.
    fn float(&mut self, text: &str) -> Result<(), Problem> {
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn string(&mut self, text: &str) {
        push_json_string(text, self.out);
    }

    /// A string in base64 (RFC 4648, section 4, padded).
    fn hex(&mut self, digits: &[u8]) -> Result<(), Problem> {
        // A multiple of three bytes, so that only the last piece is padded.
        const PIECE: usize = 3 * 256;
        let mut bytes = Vec::with_capacity((digits.len() / 2).min(PIECE));
        let mut text = [0; PIECE / 3 * 4];
        self.out.push(b'"');
        for piece in digits.chunks(2 * PIECE) {
            bytes.clear();
            push_hex(piece, &mut bytes)?;
            let length = STANDARD.encode_slice(&bytes, &mut text).map_err(|_| "it is too long")?;
            self.out.extend_from_slice(&text[..length]);
        }
        self.out.push(b'"');
        Ok(())
    }

    /// Embedded as it is.
    fn json(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn begin(&mut self, container: Container) -> usize {
        self.out.push(if container == Container::Array { b'[' } else { b'{' });
        self.out.len()
    }

    fn separate(&mut self, index: usize) {
        if index > 0 {
            self.out.push(b',');
        }
    }

    fn colon(&mut self) {
        self.out.push(b':');
    }

    fn end(&mut self, container: Container, _mark: usize, _count: usize) {
        self.out.push(if container == Container::Array { b']' } else { b'}' });
    }
}

/// The MessagePack extension type that holds JSON text, so that a guest can hand it on without parsing it.
pub const JSON_EXTENSION: u8 = 1;

/// MessagePack in its shortest forms; json values are extension type [`JSON_EXTENSION`] with the raw JSON
/// text, always as ext 8, 16 or 32.
#[derive(Debug)]
pub struct MsgpackEncoder<'a> {
    /// What it writes to.
    pub out: &'a mut Vec<u8>,
}

impl<'a> MsgpackEncoder<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Marker and big-endian length in the smallest of the widths that there are; all lengths come from
    /// cells or arrays of them and fit 32 bits.
    #[inline]
    fn length(&mut self, length: usize, narrow: Option<u8>, medium: u8, wide: u8) {
        if let (Some(narrow), Ok(length)) = (narrow, u8::try_from(length)) {
            self.out.extend_from_slice(&[narrow, length]);
        } else if let Ok(length) = u16::try_from(length) {
            let [high, low] = length.to_be_bytes();
            self.out.extend_from_slice(&[medium, high, low]);
        } else {
            self.out.push(wide);
            self.out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        }
    }

    /// The header of an array whose length is known, such as a row.
    pub fn array_header(&mut self, count: usize) {
        match u8::try_from(count) {
            Ok(count @ 0..=15) => self.out.push(0x90 | count),
            _ => self.length(count, None, 0xdc, 0xdd),
        }
    }

    /// The header of a map whose length is known.
    pub fn map_header(&mut self, count: usize) {
        match u8::try_from(count) {
            Ok(count @ 0..=15) => self.out.push(0x80 | count),
            _ => self.length(count, None, 0xde, 0xdf),
        }
    }
}

impl Encoder for MsgpackEncoder<'_> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn null(&mut self) {
        self.out.push(0xc0);
    }

    fn bool(&mut self, value: bool) {
        self.out.push(0xc2 | u8::from(value));
    }

    fn integer(&mut self, value: i64) {
        let bytes = value.to_be_bytes();
        let (marker, width) = match value {
            -32..=0x7f => (None, 1),
            0x80..=0xff => (Some(0xcc), 1),
            0x100..=0xffff => (Some(0xcd), 2),
            0x1_0000..=0xffff_ffff => (Some(0xce), 4),
            0x1_0000_0000.. => (Some(0xcf), 8),
            -0x80..=-33 => (Some(0xd0), 1),
            -0x8000..=-0x81 => (Some(0xd1), 2),
            -0x8000_0000..=-0x8001 => (Some(0xd2), 4),
            ..=-0x8000_0001 => (Some(0xd3), 8),
        };
        self.out.extend(marker);
        self.out.extend_from_slice(&bytes[8 - width..]);
    }

    /// Always float 64: the double nearest to the text.
    fn float(&mut self, text: &str) -> Result<(), Problem> {
        let value: f64 = text.parse().map_err(|_| "it is not a floating-point number")?;
        self.out.push(0xcb);
        self.out.extend_from_slice(&value.to_be_bytes());
        Ok(())
    }

    #[inline]
    fn string(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(length @ 0..=31) => self.out.push(0xa0 | length),
            _ => self.length(text.len(), Some(0xd9), 0xda, 0xdb),
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    fn hex(&mut self, digits: &[u8]) -> Result<(), Problem> {
        self.length(digits.len() / 2, Some(0xc4), 0xc5, 0xc6);
        push_hex(digits, self.out)
    }

    fn json(&mut self, text: &str) {
        self.length(text.len(), Some(0xc7), 0xc8, 0xc9);
        self.out.push(JSON_EXTENSION);
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Leaves room for the shortest header.
    fn begin(&mut self, _container: Container) -> usize {
        self.out.push(0);
        self.out.len()
    }

    fn separate(&mut self, _index: usize) {}

    fn colon(&mut self) {}

    /// Writes the header into its room, and makes more of it for a long container.
    fn end(&mut self, container: Container, mark: usize, count: usize) {
        let (narrow, wide) = if container == Container::Array { (0x90, 0xdc) } else { (0x80, 0xde) };
        match u8::try_from(count) {
            Ok(count @ 0..=15) => self.out[mark - 1] = narrow | count,
            _ => {
                let mut header = Vec::with_capacity(5);
                MsgpackEncoder::new(&mut header).length(count, None, wide, wide + 1);
                self.out.splice(mark - 1..mark, header);
            }
        }
    }
}
