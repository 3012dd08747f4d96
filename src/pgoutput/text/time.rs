//! Dates and times: Postgres's ISO style to RFC 3339 where a year has four digits, else Postgres's text.
//!
//! In DateStyle ISO only the space and the offset differ. A date outside years 1 to 9999 has ` BC` behind it
//! or more digits in its year; `infinity` and `-infinity` are words.

use super::{Encoder, Problem};

const STYLE: Problem = "it is not in ISO style; the session's DateStyle must be ISO";

/// The shapes of dates and times: each `d` is a digit, all else stands for itself.
const DATE: &[u8; 10] = b"dddd-dd-dd";
const TIME: &[u8; 8] = b"dd:dd:dd";

/// Whether the text at `at` has the shape; without branches, so that it takes a few instructions.
#[inline]
fn has_shape<const N: usize>(text: &[u8], at: usize, shape: &[u8; N]) -> bool {
    let Some(text) = text.get(at..).and_then(<[u8]>::first_chunk::<N>) else { return false };
    let fits = |(byte, shape): (&u8, &u8)| if *shape == b'd' { byte.is_ascii_digit() } else { byte == shape };
    text.iter().zip(shape).map(fits).fold(true, |all, fits| all & fits)
}

/// Reads `y…y-mm-dd`: the number of the year's digits, at least four; the date ends six bytes later.
fn scan_date(text: &[u8]) -> Option<usize> {
    if has_shape(text, 0, DATE) {
        return Some(4);
    }
    let year = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (year > 4 && has_shape(text, year - 4, DATE)).then_some(year)
}

/// Reads `hh:mm:ss` with up to six decimals at `at`, and says where it ends.
fn scan_time(text: &[u8], at: usize) -> Option<usize> {
    if !has_shape(text, at, TIME) {
        return None;
    }
    let end = at + TIME.len();
    if text.get(end) != Some(&b'.') {
        return Some(end);
    }
    let decimals = text[end + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    (1..=6).contains(&decimals).then_some(end + 1 + decimals)
}

fn is_infinity(text: &str) -> bool {
    matches!(text, "infinity" | "-infinity")
}

/// `2024-01-31` is RFC 3339's full-date as it is.
pub(super) fn date(text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    let rest = scan_date(text.as_bytes()).map(|year| &text[year + 6..]);
    if matches!(rest, Some("" | " BC")) || is_infinity(text) {
        out.string(text);
        return Ok(());
    }
    Err(STYLE)
}

/// `12:34:56.789` is RFC 3339's partial-time as it is; Postgres also has `24:00:00`.
pub(super) fn time(text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    if scan_time(text.as_bytes(), 0) == Some(text.len()) {
        out.string(text);
        return Ok(());
    }
    Err("it is not a time of day")
}

/// `2024-01-31 12:34:56` to `2024-01-31T12:34:56`.
pub(super) fn timestamp(text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    convert(text, "", "", out)
}

/// `2024-01-31 12:34:56+00` to `2024-01-31T12:34:56Z`.
pub(super) fn timestamptz(text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    convert(text, "+00", "Z", out)
}

fn convert(text: &str, offset: &str, zone: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    if is_infinity(text) {
        out.string(text);
        return Ok(());
    }
    let bytes = text.as_bytes();
    let year = scan_date(bytes).filter(|year| bytes.get(year + 6) == Some(&b' ')).ok_or(STYLE)?;
    let end = scan_time(bytes, year + 7).ok_or(STYLE)?;
    let rest = text[end..]
        .strip_prefix(offset)
        .ok_or("its offset is not +00; the session's TimeZone must be UTC")?;
    match rest {
        "" if year == 4 => {
            // At most 26 bytes and the zone.
            let mut rfc = [0; 32];
            let length = end + zone.len();
            rfc[..end].copy_from_slice(&bytes[..end]);
            rfc[10] = b'T';
            rfc[end..length].copy_from_slice(zone.as_bytes());
            out.string(std::str::from_utf8(&rfc[..length]).map_err(|_| STYLE)?);
        }
        "" | " BC" => out.string(text),
        _ => return Err(STYLE),
    }
    Ok(())
}

/// Whether the text is an ISO 8601 duration (with Postgres's signs inside), or an infinity (Postgres 17).
pub(super) fn is_interval(text: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_digit() || b"YMWDTHS.-".contains(&byte);
    let duration = text.strip_prefix('P').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(part));
    duration || is_infinity(text)
}
