//! Strings as JSON writes them (RFC 8259, section 7).

/// Whether a byte must be escaped: controls, the quote, the backslash.
#[inline]
fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// The position of the first such byte of a word.
#[inline]
fn find_in_word(word: &[u8; 8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(*word);
    let zero_in = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    let quote = zero_in(word ^ (ONES * u64::from(b'"')));
    let backslash = zero_in(word ^ (ONES * u64::from(b'\\')));
    let found = control | quote | backslash;
    // Borrows make false finds only above the first true one.
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// The position of the first byte that must be escaped in a JSON string, or that ends one; the length, where
/// there is none. Keys and short values, which are most strings, end in the first two words; only behind them
/// are wider steps worth their cost.
#[inline]
pub(crate) fn find_special(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<8>() {
        if let Some(found) = find_in_word(word) {
            return at + found;
        }
        at += 8;
        if at == 16 {
            // Without a way out of the inner loop it compiles to vectors.
            let clean = |chunk: &&[u8; 32]| !chunk.iter().fold(false, |any, &byte| any | is_special(byte));
            at += 32 * bytes[at..].as_chunks::<32>().0.iter().take_while(clean).count();
        }
    }
    at + bytes[at..].iter().position(|&byte| is_special(byte)).unwrap_or(bytes.len() - at)
}

/// Appends a string in its quotes.
pub(super) fn push_json_string(text: &str, out: &mut Vec<u8>) {
    let mut bytes = text.as_bytes();
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    loop {
        let at = find_special(bytes);
        out.extend_from_slice(&bytes[..at]);
        let Some(&byte) = bytes.get(at) else { break };
        push_escape(byte, out);
        bytes = &bytes[at + 1..];
    }
    out.push(b'"');
}

#[cold]
fn push_escape(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn specials_are_found(bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), 0x1f_u8..0x24, 0x5b_u8..0x5e, 0x7e_u8..0x82, Just(b'a')], 0..40), clean in 0..100_usize) {
            let bytes = [vec![b'a'; clean], bytes].concat();
            let expected = bytes.iter().position(|byte| is_special(*byte)).unwrap_or(bytes.len());
            prop_assert_eq!(find_special(&bytes), expected);
        }

        #[test]
        fn strings_round_trip(text in "[\\x00-\\x7f\"\\\\\\na-zé€😀]{0,40}") {
            let mut out = Vec::new();
            push_json_string(&text, &mut out);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }

    #[test]
    fn controls_are_escaped() {
        let mut out = Vec::new();
        push_json_string("a\u{1}\u{1f}\"\\\n\r\t\u{8}\u{c}\u{7f}\u{2028}", &mut out);
        assert_eq!(out, "\"a\\u0001\\u001f\\\"\\\\\\n\\r\\t\\b\\f\u{7f}\u{2028}\"".as_bytes());
    }
}
