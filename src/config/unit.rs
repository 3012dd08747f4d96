//! Durations and sizes as people write them.

use std::time::Duration;

/// Reads `250ms`, `5s`, `2m`, `1h`, `1d`, also with a fraction (`1.5s`).
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// Reads `512B`, `64KiB`, `8MiB`, `1GiB`, `1.5MiB`, and the decimal `kB`, `MB`, `GB`.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    let bytes = number * scale;
    // Beyond 2^53 a double no longer counts single bytes; nobody means such a size.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, see the guard")]
    (bytes.fract() == 0.0 && bytes < 9e15).then_some(bytes as u64)
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')?;
    let (number, unit) = text.split_at(digits);
    let starts = number.starts_with(|c: char| c.is_ascii_digit());
    starts.then(|| number.replace('_', "").parse().ok()).flatten().map(|number| (number, unit.trim_start()))
}

/// A duration in the form that [`duration`] reads.
pub(super) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        _ if millis.is_multiple_of(3_600_000) && millis > 0 => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) && millis > 0 => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1000) => format!("{}s", millis / 1000),
        _ => format!("{millis}ms"),
    }
}

/// A size in the form that [`bytes()`] reads.
pub(super) fn show_bytes(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(scale, _)| bytes >= *scale && bytes.is_multiple_of(*scale)) {
        Some((scale, unit)) => format!("{}{unit}", bytes / scale),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("5s"), Some(Duration::from_secs(5)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("1.5 s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "5 parsecs", "-1s", "1e3s", "5S", ".5s", "1..5s", "99999999999999999999d"]
        {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("64MiB"), Some(64 << 20));
        assert_eq!(bytes("1_000 B"), Some(1000));
        assert_eq!(bytes("1.5KiB"), Some(1536));
        for wrong in ["", "64", "MiB", "0.3B", "64mib", "-1B", "1MiBx", "99999999GiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for millis in [1, 999, 1000, 1500, 60_000, 3_600_000, 0] {
            let value = Duration::from_millis(millis);
            assert_eq!(duration(&show_duration(value)), Some(value));
        }
        for size in [0, 1, 1023, 1024, 1536, 1 << 20, 1 << 31] {
            assert_eq!(bytes(&show_bytes(size)), Some(size));
        }
    }
}
