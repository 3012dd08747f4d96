//! Numbers as Postgres writes them.

/// An integer in plain digits, as int2, int4, int8 and oid are written: no plus sign, no leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || (digits[0] == b'0' && text.len() > 1) || digits.len() > 19 {
        return None;
    }
    let mut value = 0_u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // At most 19 digits: below 10^19, which fits 64 bits.
        value = value * 10 + u64::from(digit);
    }
    if negative { 0_i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// Skips digits, and says where they end; none when there are none.
fn digits(text: &[u8], at: usize) -> Option<usize> {
    let count = text.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count > 0).then_some(at + count)
}

/// The end of a JSON number (RFC 8259, section 6) that begins at `at`.
pub(super) fn json_number(text: &[u8], at: usize) -> Option<usize> {
    let first = if text.get(at) == Some(&b'-') { at + 1 } else { at };
    let mut end = if text.get(first) == Some(&b'0') { first + 1 } else { digits(text, first)? };
    if text.get(end) == Some(&b'.') {
        end = digits(text, end + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(end) {
        let sign = matches!(text.get(end + 1), Some(b'+' | b'-'));
        end = digits(text, end + 1 + usize::from(sign))?;
    }
    Some(end)
}

/// Whether the text is one JSON number; Postgres's float texts are (`1e-05` too).
pub(super) fn is_json_number(text: &[u8]) -> bool {
    json_number(text, 0) == Some(text.len())
}

/// Whether the text is a numeric: plain digits with sign and scale, or one of its three words.
pub(super) fn is_numeric(text: &str) -> bool {
    let bytes = text.as_bytes();
    let first = usize::from(bytes.first() == Some(&b'-'));
    let plain = digits(bytes, first).and_then(|end| match bytes.get(end) {
        Some(b'.') => digits(bytes, end + 1),
        _ => Some(end),
    });
    plain == Some(bytes.len()) || matches!(text, "NaN" | "Infinity" | "-Infinity")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_have_one_form() {
        for (text, value) in [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(text.as_bytes()), Some(value));
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        for text in
            ["", "-", "-0", "00", "01", "+1", "1 ", "1.0", "9223372036854775808", "99999999999999999999"]
        {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn integers_round_trip(value: i64) {
            prop_assert_eq!(integer(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn json_numbers_are_those_of_serde_json(text in "-?[0-9]{0,2}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?") {
            let expected = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert_eq!(is_json_number(text.as_bytes()), expected, "{}", text);
        }
    }
}
