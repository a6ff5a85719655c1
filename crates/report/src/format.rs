//! Numbers as people read them.

/// `value` with three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// `value` with three significant digits and a decimal prefix before `unit`.
pub(crate) fn scaled(value: f64, unit: &str) -> String {
    let (divisor, prefix) = match value.abs() {
        v if v >= 999.5e6 => (1e9, "G"),
        v if v >= 999.5e3 => (1e6, "M"),
        v if v >= 999.5 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{} {prefix}{unit}", digits(value / divisor))
}

/// A time in nanoseconds, in the unit that suits.
pub(crate) fn time_ns(value: f64) -> String {
    match value {
        v if v >= 999.5e6 => format!("{} s", digits(v / 1e9)),
        v if v >= 999.5e3 => format!("{} ms", digits(v / 1e6)),
        v if v >= 999.5 => format!("{} µs", digits(v / 1e3)),
        v => format!("{} ns", digits(v)),
    }
}

/// A message size: exact in bytes, or in KiB or MiB if these are exact.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0 => "–".to_string(),
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown_at_every_magnitude() {
        assert_eq!(digits(0.0), "0.00");
        assert_eq!(digits(0.1234), "0.123");
        assert_eq!(digits(0.9999), "1.00");
        assert_eq!(digits(9.999), "10.0");
        assert_eq!(digits(99.97), "100");
        assert_eq!(digits(12345.6), "12346");
    }

    #[test]
    fn units_follow_the_magnitude() {
        assert_eq!(scaled(27.44e9, "b/s"), "27.4 Gb/s");
        assert_eq!(scaled(999.9, "op/s"), "1.00 kop/s");
        assert_eq!(time_ns(3650.0), "3.65 µs");
        assert_eq!(time_ns(12.0e6), "12.0 ms");
        assert_eq!(size(4 << 20), "4 MiB");
        assert_eq!(size(1536), "1536 B");
    }
}
