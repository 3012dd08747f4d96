//! Text into the reply.
//!
//! Most texts of a document are short: keys, and columns of a few bytes. In WebAssembly a copy of a length that the
//! compiler does not know is a call out of the guest (`memory.copy`), and so is worth avoiding for them: what fits
//! is made a block in registers, of which the end is cut off again after it was appended. Of longer text, whole
//! blocks are looked at for what must be escaped.

/// What is appended or looked at in one step.
const BLOCK: usize = 16;

/// Whether a word has a byte that must be escaped. Unlike [`specials`] the compiler works it out where the text is
/// a constant, as keys are.
#[inline]
fn has_special(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (control | zeros(word ^ (ONES * 0x22)) | zeros(word ^ (ONES * 0x5c))) & (ONES * 0x80) != 0
}

/// Which bytes of a block must be escaped, one bit each: controls, the quote, the backslash. Vectors of 128 bits
/// are part of WebAssembly 2.0, and so of every host of components; the compiler needs leave to use them.
#[cfg(target_arch = "wasm32")]
#[target_feature(enable = "simd128")]
#[inline]
fn specials(block: &[u8; BLOCK]) -> u32 {
    use core::arch::wasm32::{u8x16_bitmask, u8x16_eq, u8x16_lt, u8x16_splat, u64x2, v128_or};
    let (low, high) = halves(block);
    let bytes = u64x2(low, high);
    let control = u8x16_lt(bytes, u8x16_splat(0x20));
    let quote = u8x16_eq(bytes, u8x16_splat(b'"'));
    let backslash = u8x16_eq(bytes, u8x16_splat(b'\\'));
    u32::from(u8x16_bitmask(v128_or(control, v128_or(quote, backslash))))
}

#[cfg(not(target_arch = "wasm32"))]
#[inline]
fn specials(block: &[u8; BLOCK]) -> u32 {
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    block.iter().rev().fold(0, |mask, &byte| mask << 1 | u32::from(is_special(byte)))
}

#[inline]
#[cfg(target_arch = "wasm32")]
fn halves(block: &[u8; BLOCK]) -> (u64, u64) {
    let both = u128::from_le_bytes(*block);
    (both as u64, (both >> 64) as u64)
}

/// Up to sixteen bytes, the first of them lowest; zeros behind. Two words rather than one number of 128 bits,
/// because WebAssembly has no shifts of such.
#[derive(Clone, Copy)]
struct Block {
    low: u64,
    high: u64,
}

impl Block {
    /// Fewer bytes than a block has.
    #[inline(always)]
    fn new(bytes: &[u8]) -> Self {
        match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            // Both ends, which overlap; of the end only what the beginning does not have.
            (Some(first), Some(last)) => {
                let high = u64::from_le_bytes(*last).checked_shr(8 * (16 - bytes.len() as u32));
                Self { low: u64::from_le_bytes(*first), high: high.unwrap_or(0) }
            }
            _ => Self { low: word(bytes), high: 0 },
        }
    }

    /// With zeros before it; what does not fit any more is lost.
    #[inline(always)]
    fn after(self, zeros: u32) -> Self {
        let bits = 8 * zeros;
        Self { low: self.low << bits, high: self.high << bits | self.low >> (64 - bits) }
    }

    /// Puts a byte where a zero is.
    #[inline(always)]
    fn with(mut self, at: usize, byte: u8) -> Self {
        let place = if at < 8 { &mut self.low } else { &mut self.high };
        *place |= u64::from(byte) << (8 * (at % 8));
        self
    }

    /// Whether one of the first bytes must be escaped.
    #[inline(always)]
    fn has_special(self, len: usize) -> bool {
        // What is behind them must not look like a control.
        let (low, high) = match len {
            0..8 => (!0 << (8 * len), !0),
            8..BLOCK => (0, !0 << (8 * (len - 8))),
            _ => (0, 0),
        };
        let behind = u64::from_ne_bytes([b'x'; 8]);
        has_special(self.low | low & behind) || has_special(self.high | high & behind)
    }

    #[inline(always)]
    fn to_bytes(self) -> [u8; BLOCK] {
        (u128::from(self.low) | u128::from(self.high) << 64).to_le_bytes()
    }

    /// Appends the first bytes.
    #[inline(always)]
    fn push(self, len: usize, out: &mut Vec<u8>) {
        let end = out.len() + len;
        out.extend_from_slice(&self.to_bytes());
        out.truncate(end);
    }
}

/// The same of at most seven bytes.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>(), bytes) {
        (Some(first), Some(last), _) => {
            let last = u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4));
            u64::from(u32::from_le_bytes(*first)) | last
        }
        (.., &[first, second, third]) => u64::from(u32::from_le_bytes([first, second, third, 0])),
        (.., &[first, second]) => u64::from(u16::from_le_bytes([first, second])),
        (.., &[first]) => u64::from(first),
        _ => 0,
    }
}

/// A text in its quotes, with room for other two bytes; none where it is too long or has to be escaped.
#[inline(always)]
fn quoted(text: &str) -> Option<Block> {
    let len = text.len();
    if len > BLOCK - 4 {
        return None;
    }
    let block = Block::new(text.as_bytes());
    (!block.has_special(len)).then(|| block.after(1).with(0, b'"').with(len + 1, b'"'))
}

/// Appends bytes as they are.
#[inline]
pub(crate) fn push(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.len() < BLOCK {
        Block::new(bytes).push(bytes.len(), out);
    } else {
        out.extend_from_slice(bytes);
    }
}

/// Appends what stands before a value in an object: a comma where it is not the first, its key, a colon.
#[inline(always)]
pub(crate) fn push_key(first: bool, key: &'static str, out: &mut Vec<u8>) {
    let Some(quoted) = quoted(key) else {
        if !first {
            out.push(b',');
        }
        push_json_long(key, out);
        out.push(b':');
        return;
    };
    let len = key.len() + 3;
    let block = quoted.with(len - 1, b':');
    if first {
        block.push(len, out);
    } else {
        block.after(1).with(0, b',').push(len + 1, out);
    }
}

/// Appends a string as JSON writes it, in its quotes.
#[inline]
pub(crate) fn push_json(text: &str, out: &mut Vec<u8>) {
    match quoted(text) {
        Some(quoted) => quoted.push(text.len() + 2, out),
        None => push_json_long(text, out),
    }
}

#[inline(never)]
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
fn push_json_long(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let (plain, behind) = rest.split_at(plain_run(rest));
        push(plain, out);
        let Some((&special, behind)) = behind.split_first() else { break };
        escape(special, out);
        rest = behind;
    }
    out.push(b'"');
}

/// How many bytes at the beginning stand in a JSON string as they are.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
#[inline]
fn plain_run(bytes: &[u8]) -> usize {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut at = 0;
    for block in blocks {
        let found = specials(block);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += BLOCK;
    }
    // The rest is filled up with zeros, which are special too.
    at + (specials(&Block::new(rest).to_bytes()).trailing_zeros() as usize).min(rest.len())
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' => out.extend_from_slice(b"\\\""),
        b'\\' => out.extend_from_slice(b"\\\\"),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        _ => {
            let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digits[0], digits[1]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_escaped_at_every_place_of_every_length() {
        for special in (0..0x80u8).map(char::from) {
            for (len, before) in (1..40).flat_map(|len| (0..len).map(move |before| (len, before))) {
                let text = format!("{}{special}{}", "é".repeat(before / 2), "x".repeat(len - before - 1));
                let mut written = Vec::new();
                push_json(&text, &mut written);
                assert_eq!(serde_json::from_slice::<String>(&written).unwrap(), text);
            }
        }
    }

    #[test]
    fn keys_stand_between_comma_and_colon() {
        for key in ["", "a", "title", "twelve bytes", "thirteen byte", "with \"quotes\"", "\n", "é"] {
            let mut written = b"{".to_vec();
            push_key(true, key, &mut written);
            written.push(b'1');
            push_key(false, key, &mut written);
            written.extend_from_slice(b"2}");
            let quoted = serde_json::to_string(key).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), format!("{{{quoted}:1,{quoted}:2}}"));
        }
    }

    #[test]
    fn every_length_is_copied_whole() {
        let text: String = ('\u{20}'..='\u{7e}').cycle().take(150).collect();
        for from in [0, 1, 7] {
            for to in from..text.len() {
                let text = &text[from..to];
                let mut copied = b"before".to_vec();
                push(text.as_bytes(), &mut copied);
                assert_eq!(copied.strip_prefix(b"before"), Some(text.as_bytes()));
                let mut written = Vec::new();
                push_json(text, &mut written);
                assert_eq!(serde_json::from_slice::<String>(&written).unwrap(), text);
            }
        }
    }
}
