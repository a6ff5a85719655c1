//! Parses options of benchmarks: sizes, rates, times, tests and waiting modes.

use bench::transport::{Test, Waiting};

/// Parses bytes: a number, with K for 2^10, M for 2^20 or G for 2^30.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number.and_then(|number| number.checked_mul(factor)).filter(|bytes| *bytes > 0).ok_or_else(
        || {
            "invalid size: it must be a number of bytes above 0, with K for 1024, M for 1048576 or \
             G for 1073741824"
                .to_string()
        },
    )
}

/// Parses bits per second: a number, with M for 10^6 or G for 10^9.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let rate = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    rate.filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate)).ok_or_else(|| {
        "invalid rate: it must be a number of bits per second from 1M to 100G, such as 10G or 500M".to_string()
    })
}

pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        .ok_or_else(|| "a positive number of seconds".to_string())
}

pub(crate) fn parse_waiting(text: &str) -> Result<Waiting, String> {
    let known = || Waiting::ALL.map(Waiting::name).join(", ");
    Waiting::ALL
        .into_iter()
        .find(|waiting| waiting.name() == text)
        .ok_or_else(|| format!("the ways to wait are: {}", known()))
}

pub(crate) fn parse_test(text: &str) -> Result<Test, String> {
    let known = || Test::NAMED.map(Test::name).join(", ");
    Test::NAMED
        .into_iter()
        .find(|test| test.name() == text)
        .ok_or_else(|| format!("the tests are: {}", known()))
}

/// Lowest rate, in bits per second. At this rate, a message of 64 KiB takes half a second.
const RATE_MIN: u64 = 1_000_000;
const RATE_MAX: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("7"), Ok(7));
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for wrong in ["", "0", "G", "-1K", "1T", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
