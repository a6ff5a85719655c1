//! Parses units in configurations, such as `"10 Gb/s"`, `"4 MiB"` or `"2 us"`, and plain numbers.

/// Unit of a number. The last part of the key's name determines the unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unit {
    /// Picoseconds.
    Time,
    /// Picoseconds for each byte.
    TimePerByte,
    /// Bits per second.
    Rate,
    /// Bytes.
    Size,
    /// Percent.
    Percent,
    /// Millionths.
    Millionths,
    /// Billionths.
    Billionths,
    /// A count of items.
    Count,
}

impl Unit {
    /// Returns the unit of a key, according to the last part of its name.
    pub(super) fn of(key: &str) -> Self {
        let ends = [
            ("ps_per_byte", Self::TimePerByte),
            ("byte_ps", Self::TimePerByte),
            ("_ps", Self::Time),
            ("_bps", Self::Rate),
            ("bytes", Self::Size),
            ("_percent", Self::Percent),
            ("_ppm", Self::Millionths),
            ("_ppb", Self::Billionths),
        ];
        ends.into_iter().find(|(end, _)| key.ends_with(end)).map_or(Self::Count, |(_, unit)| unit)
    }

    /// Returns the name of the unit in which a number without a unit counts.
    pub const fn plain(self) -> &'static str {
        match self {
            Self::Time => "ps",
            Self::TimePerByte => "ps per byte",
            Self::Rate => "b/s",
            Self::Size => "bytes",
            Self::Percent => "%",
            Self::Millionths => "ppm",
            Self::Billionths => "ppb",
            Self::Count => "",
        }
    }

    /// Returns the names of units with their factors. If names have equal factors, the first is
    /// used for output.
    const fn names(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Time | Self::TimePerByte => &[
                ("ps", 1),
                ("ns", 1_000),
                ("us", 1_000_000),
                ("µs", 1_000_000),
                ("μs", 1_000_000),
                ("ms", 1_000_000_000),
                ("s", 1_000_000_000_000),
            ],
            Self::Rate => &[
                ("b/s", 1),
                ("kb/s", 1_000),
                ("Mb/s", 1_000_000),
                ("Gb/s", 1_000_000_000),
                ("Tb/s", 1_000_000_000_000),
                ("bit/s", 1),
                ("kbit/s", 1_000),
                ("Mbit/s", 1_000_000),
                ("Gbit/s", 1_000_000_000),
                ("Tbit/s", 1_000_000_000_000),
            ],
            Self::Size => &[
                ("B", 1),
                ("kB", 1_000),
                ("MB", 1_000_000),
                ("GB", 1_000_000_000),
                ("KiB", 1 << 10),
                ("MiB", 1 << 20),
                ("GiB", 1 << 30),
                ("TiB", 1 << 40),
            ],
            Self::Percent => &[("%", 1)],
            Self::Millionths => &[("ppm", 1)],
            Self::Billionths => &[("ppb", 1)],
            Self::Count => &[],
        }
    }

    /// Parses a number with a unit. Returns the number in the plain unit, if it is an integer.
    pub fn parse(self, text: &str) -> Option<u64> {
        let (number, name) = split(text);
        let (_, factor) = self.names().iter().find(|(known, _)| *known == name)?;
        exact(number, *factor)
    }

    /// Returns the number that the author probably meant. Accepts units in wrong upper or lower
    /// case, and numbers with an exponent, such as `1e6`.
    pub(super) fn guess(self, text: &str) -> Option<u64> {
        let (number, name) = split(text);
        let letters = |name: &str| {
            let name = name.to_lowercase().replace("bps", "b/s").replace("bit/s", "b/s");
            let name = name.replace("percent", "%").replace("sec", "s");
            name.trim_end_matches("ytes").trim_end_matches("yte").to_owned()
        };
        let meant = self.names().iter().find(|(known, _)| letters(known) == letters(name));
        if let Some(number) = meant.and_then(|(_, factor)| exact(number, *factor)) {
            return Some(number);
        }
        let value: f64 = text.trim().replace('_', "").parse().ok()?;
        self.nearest(value)
    }

    /// Returns the integer that the author of a fraction probably meant. This is the nearest
    /// integer. If the unit is percent, a value between 0 and 1 is first multiplied by 100.
    pub(super) fn nearest(self, value: f64) -> Option<u64> {
        let is_share = self == Self::Percent && value > 0.0 && value < 1.0;
        let value = if is_share { value * 100.0 } else { value };
        // The conversion turns negative values into 0.
        value.is_finite().then_some(value.round() as u64)
    }

    /// Formats a number exactly, with the unit that is usual for its size.
    pub(super) fn written(self, value: u64) -> String {
        let names = self.names();
        let is_short = |factor: u64| {
            let thousandths = u128::from(value) * 1_000;
            thousandths.is_multiple_of(factor.into())
        };
        let best = names
            .iter()
            .filter(|(_, factor)| *factor > 1 && value >= *factor && is_short(*factor))
            .filter(|(_, factor)| {
                // A binary unit (such as KiB) is used only if the size is a multiple of this unit.
                // A decimal unit (such as kB) is used only for sizes of 10000 bytes or more that
                // are not a multiple of 1024.
                self != Self::Size
                    || factor.is_power_of_two() && value.is_multiple_of(*factor)
                    || !factor.is_power_of_two()
                        && value >= 10_000
                        && !value.is_multiple_of(1 << 10)
            })
            .max_by_key(|(name, factor)| (*factor, std::cmp::Reverse(name.len())));
        match best {
            Some((name, factor)) => {
                let thousandths = u128::from(value) * 1_000 / u128::from(*factor);
                let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
                format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
            }
            None => match names.first() {
                Some((name, _)) if value > 0 => format!("{value} {name}"),
                _ => value.to_string(),
            },
        }
    }

    /// Formats a number as a value of a configuration. A number with a unit becomes a quoted text.
    pub(super) fn quoted(self, value: u64) -> String {
        let text = self.written(value);
        if text.contains(' ') { format!("\"{text}\"") } else { text }
    }

    /// Returns `value`, rounded down to four digits if its exact form has more than six digits.
    /// Counts are not rounded.
    pub(super) fn below(self, value: u64) -> u64 {
        let is_long = self.written(value).chars().filter(char::is_ascii_digit).count() > 6;
        if self == Self::Count || !is_long {
            return value;
        }
        let place = 10_u64.pow(value.ilog10().saturating_sub(3));
        value / place * place
    }
}

/// Splits a text into a number and a unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|letter: char| !matches!(letter, '0'..='9' | '.' | '_'));
    let (number, name) = text.split_at(end.unwrap_or(text.len()));
    (number, name.trim())
}

/// Multiplies a decimal number by a factor. Returns the product if it is an integer.
fn exact(number: &str, factor: u64) -> Option<u64> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = 10_u128.checked_pow(fraction.len().try_into().ok()?)?;
    let product = digits.checked_mul(factor.into())?;
    product.is_multiple_of(divisor).then(|| u64::try_from(product / divisor).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_parsed_exactly() {
        for (unit, text, value) in [
            (Unit::Rate, "10 Gb/s", 10_000_000_000),
            (Unit::Rate, "2.5Gbit/s", 2_500_000_000),
            (Unit::Rate, "100 Mb/s", 100_000_000),
            (Unit::Size, "4 MiB", 4 << 20),
            (Unit::Size, "1.5 kB", 1_500),
            (Unit::Size, "64 B", 64),
            (Unit::Time, "2 us", 2_000_000),
            (Unit::Time, "0.5 µs", 500_000),
            (Unit::Time, "1_000 ns", 1_000_000),
            (Unit::TimePerByte, "80 ps", 80),
            (Unit::Percent, "50 %", 50),
        ] {
            assert_eq!(unit.parse(text), Some(value), "{text}");
        }
        for (unit, text) in [
            (Unit::Rate, "10 gb/s"),
            (Unit::Rate, "10e9"),
            (Unit::Rate, "10"),
            (Unit::Time, "0.5 ps"),
            (Unit::Time, "-2 us"),
            (Unit::Time, "2 MiB"),
            (Unit::Size, "99999999999 TiB"),
            (Unit::Size, "1.2.3 B"),
            (Unit::Count, "3 things"),
        ] {
            assert_eq!(unit.parse(text), None, "{text}");
        }
    }

    #[test]
    fn likely_meanings_of_wrong_units_are_guessed() {
        assert_eq!(Unit::Rate.guess("10e9"), Some(10_000_000_000));
        assert_eq!(Unit::Rate.guess("10 Gbps"), Some(10_000_000_000));
        assert_eq!(Unit::Size.guess("4 mib"), Some(4 << 20));
        assert_eq!(Unit::Size.guess("64 bytes"), Some(64));
        assert_eq!(Unit::Time.guess("2US"), Some(2_000_000));
        assert_eq!(Unit::Percent.guess("50 percent"), Some(50));
        assert_eq!(Unit::Percent.guess("0.5"), Some(50));
        assert_eq!(Unit::Time.guess("soon"), None);
    }

    proptest::proptest! {
        #[test]
        fn printed_values_parse_to_the_same_values(value: u64) {
            for unit in [Unit::Time, Unit::Rate, Unit::Size, Unit::Percent] {
                let text = unit.written(value);
                let again = unit.parse(&text).or_else(|| text.parse().ok());
                proptest::prop_assert_eq!(again, Some(value), "{}", text);
                proptest::prop_assert!(unit.below(value) <= value);
            }
        }
    }

    #[test]
    fn numbers_are_printed_with_readable_units() {
        for (unit, value, text) in [
            (Unit::Rate, 10_000_000_000, "10 Gb/s"),
            (Unit::Rate, 2_500_000_000, "2.5 Gb/s"),
            (Unit::Size, 1_500, "1500 B"),
            (Unit::Size, 9_000, "9000 B"),
            (Unit::Size, 50_000, "50 kB"),
            (Unit::Size, 1 << 20, "1 MiB"),
            (Unit::Time, 500_000, "500 ns"),
            (Unit::Time, 1_000_000_000, "1 ms"),
            (Unit::Time, 0, "0"),
            (Unit::Count, 17, "17"),
        ] {
            assert_eq!(unit.written(value), text);
        }
        assert_eq!(Unit::Time.written(Unit::Time.below(1 << 50)), "1125 s");
    }
}
