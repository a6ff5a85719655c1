//! Formats numbers for people.

/// Formats `value` with three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats `value` with three significant digits and a decimal prefix before `unit`.
pub(crate) fn scaled(value: f64, unit: &str) -> String {
    let (divisor, prefix) = match value.abs() {
        v if v >= 999.5e6 => (1e9, "G"),
        v if v >= 999.5e3 => (1e6, "M"),
        v if v >= 999.5 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{} {prefix}{unit}", digits(value / divisor))
}

/// Formats a time in nanoseconds in a suitable unit.
pub(crate) fn time_ns(value: f64) -> String {
    match value {
        v if v >= 999.5e6 => format!("{} s", digits(v / 1e9)),
        v if v >= 999.5e3 => format!("{} ms", digits(v / 1e6)),
        v if v >= 999.5 => format!("{} µs", digits(v / 1e3)),
        v => format!("{} ns", digits(v)),
    }
}

/// Formats a message size without rounding, in bytes, KiB or MiB.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0 => "–".to_string(),
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Formats a size like [`size`], but short enough for nine labels on an axis.
pub(crate) fn short_size(bytes: u64) -> String {
    size(bytes).replace(" KiB", "K").replace(" MiB", "M").replace(" B", "")
}

/// Formats a date and time in UTC from seconds since 1970.
pub(crate) fn date(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // The days count from 1 March of year 0. A leap day is then the last day of its year, and of
    // each 400-year cycle.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600, seconds % 3600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
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
    fn dates_match_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }

    #[test]
    fn units_follow_the_magnitude() {
        assert_eq!(scaled(27.44e9, "b/s"), "27.4 Gb/s");
        assert_eq!(scaled(999.9, "op/s"), "1.00 kop/s");
        assert_eq!(time_ns(3650.0), "3.65 µs");
        assert_eq!(time_ns(12.0e6), "12.0 ms");
        assert_eq!(size(4 << 20), "4 MiB");
        assert_eq!(size(1536), "1536 B");
        assert_eq!([8, 4096, 1 << 20].map(short_size), ["8", "4K", "1M"]);
    }
}
