//! Distributions of message lengths.

use crate::Random;

/// Distribution of message lengths.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Sizes {
    /// Every message has this length, in bytes.
    Fixed(u32),
    /// Lengths have an exponential distribution with this mean, in bytes, and are at least 1 byte.
    Exponential(u32),
    /// Lengths in bytes, each with its relative weight.
    Mix(Vec<(u32, u32)>),
    /// Lengths follow a table of a cumulative distribution.
    Table(SizeTable),
}

impl Sizes {
    /// Creates a distribution of two lengths. `large_percent` percent of the messages have the
    /// larger length.
    pub fn bimodal(small_bytes: u32, large_bytes: u32, large_percent: u32) -> Self {
        let large_percent = large_percent.min(100);
        Self::Mix(vec![(small_bytes, 100 - large_percent), (large_bytes, large_percent)])
    }

    /// Returns a random length, in bytes.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Self::Fixed(bytes) => *bytes,
            Self::Exponential(mean) => random.exponential(u64::from(*mean)).max(1) as u32,
            Self::Mix(mix) => {
                let weight = mix.iter().map(|(_, weight)| u64::from(*weight)).sum();
                let mut at = random.below(weight);
                let drawn = mix.iter().find(|(_, weight)| {
                    let is_here = at < u64::from(*weight);
                    at = at.saturating_sub(u64::from(*weight));
                    is_here
                });
                drawn.map_or(1, |(bytes, _)| *bytes)
            }
            Self::Table(table) => table.at(random.below(WHOLE) as u32),
        }
    }

    /// Returns the mean length in 1/1024 of a byte, rounded down; at least 1.
    pub fn mean_bytes_1024ths(&self) -> u64 {
        let mean = match self {
            Self::Fixed(bytes) | Self::Exponential(bytes) => u64::from(*bytes) << 10,
            Self::Mix(mix) => {
                let weight: u64 = mix.iter().map(|(_, weight)| u64::from(*weight)).sum();
                let sum: u128 = mix
                    .iter()
                    .map(|(bytes, weight)| u128::from(*bytes) * u128::from(*weight))
                    .sum();
                ((sum << 10) / u128::from(weight.max(1))) as u64
            }
            Self::Table(table) => table.mean_bytes_1024ths(),
        };
        mean.max(1)
    }
}

/// A cumulative distribution. For each given length, it contains the fraction of messages that are
/// not longer. Between these lengths, the fraction is interpolated linearly. Two points with equal
/// lengths form a jump: many messages have exactly this length.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SizeTable {
    /// Lengths in bytes, and fractions in parts per billion. Neither lengths nor fractions decrease
    /// along the list. The last fraction is 1.
    points: Vec<(u32, u32)>,
}

/// Why a table of lengths is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SizesError {
    /// A line is invalid.
    #[error(
        "{file}:{line}: {what}; a line is `BYTES SHARE`, the share of messages up to that length, from 0 to 1"
    )]
    Line {
        /// Name of the file.
        file: String,
        /// Line, from 1; 0 for a list in a configuration.
        line: usize,
        /// Description of the mistake in the line.
        what: String,
    },
    /// The last fraction is not 1.
    #[error("{file}: the last share is {share}, but must be 1: the file may be truncated")]
    Incomplete {
        /// Name of the file.
        file: String,
        /// The last fraction.
        share: f64,
    },
}

impl SizeTable {
    /// Reads a table. Each line has a length in bytes, and the fraction of messages up to that
    /// length; `#` starts a comment. `file` is the name of the text in errors.
    ///
    /// # Errors
    /// Returns [`SizesError`]; each variant names one cause.
    pub fn parse(file: &str, text: &str) -> Result<Self, SizesError> {
        let mut points = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().collect();
            let wrong = |what| SizesError::Line { file: file.to_owned(), line: index + 1, what };
            match words.as_slice() {
                [] => {}
                [bytes, share] => {
                    let bytes: u32 = bytes
                        .parse()
                        .map_err(|_| wrong(format!("`{bytes}` is not a whole number of bytes")))?;
                    let parsed = share.parse().ok();
                    let share = parsed
                        .filter(|share: &f64| (0.0..=1.0).contains(share))
                        .ok_or_else(|| wrong(format!("`{share}` is not a share from 0 to 1")))?;
                    points.push((bytes, (share * WHOLE as f64).round() as u32));
                    Self::check_order(&points).map_err(wrong)?;
                }
                _ => return Err(wrong(format!("`{}` does not have two columns", content.trim()))),
            }
        }
        Self::complete(file, points)
    }

    /// Creates a table from points: lengths in bytes, and fractions in parts per billion.
    ///
    /// # Errors
    /// Returns [`SizesError`]; each variant names one cause.
    pub fn from_points(file: &str, points: Vec<(u32, u32)>) -> Result<Self, SizesError> {
        for end in 1..=points.len() {
            Self::check_order(&points[..end]).map_err(|what| SizesError::Line {
                file: file.to_owned(),
                line: 0,
                what,
            })?;
        }
        Self::complete(file, points)
    }

    /// Returns the points: lengths in bytes, and fractions in parts per billion.
    pub fn points(&self) -> &[(u32, u32)] {
        &self.points
    }

    fn complete(file: &str, points: Vec<(u32, u32)>) -> Result<Self, SizesError> {
        let share = points.last().map_or(0, |(_, share)| *share);
        if u64::from(share) != WHOLE {
            let share = f64::from(share) / WHOLE as f64;
            return Err(SizesError::Incomplete { file: file.to_owned(), share });
        }
        Ok(Self { points })
    }

    /// Checks that length and fraction of the last point are not below those of the previous point.
    fn check_order(points: &[(u32, u32)]) -> Result<(), String> {
        let [.., (previous_bytes, previous_share), (bytes, share)] = points else {
            return match points {
                [(0, _)] => Err("a message has at least 1 byte".to_owned()),
                _ => Ok(()),
            };
        };
        if bytes < previous_bytes {
            return Err(format!("{bytes} bytes after {previous_bytes}"));
        }
        if share < previous_share {
            return Err(format!("the share falls at {bytes} bytes"));
        }
        Ok(())
    }

    /// Returns a quantile of the lengths, in bytes. `share`, in parts per billion, is the part of
    /// the messages whose length does not exceed the result.
    fn at(&self, share: u32) -> u32 {
        let index = self.points.partition_point(|(_, up_to)| *up_to <= share);
        let Some(&(bytes, up_to)) = self.points.get(index) else {
            return self.points.last().map_or(1, |(bytes, _)| *bytes);
        };
        let Some(&(before_bytes, before)) = index.checked_sub(1).and_then(|at| self.points.get(at))
        else {
            return bytes;
        };
        let rise = u64::from(bytes - before_bytes) * u64::from(share - before);
        before_bytes + (rise / u64::from(up_to - before)) as u32
    }

    fn mean_bytes_1024ths(&self) -> u64 {
        let mut previous: Option<(u32, u32)> = None;
        let mut twice = 0_u128;
        for &(bytes, share) in &self.points {
            let (before_bytes, before) = previous.unwrap_or((bytes, 0));
            twice += u128::from(share - before) * (u128::from(bytes) + u128::from(before_bytes));
            previous = Some((bytes, share));
        }
        ((twice << 9) / u128::from(WHOLE)) as u64
    }
}

/// The fraction 1, in parts per billion.
const WHOLE: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_drawn(sizes: &Sizes) -> f64 {
        let mut random = Random::new(9);
        let sum: u64 = (0..200_000).map(|_| u64::from(sizes.draw(&mut random))).sum();
        sum as f64 / 200_000.0
    }

    #[test]
    fn drawn_lengths_have_the_mean_that_is_reported() {
        let table = "# web\n64 0.1\n64 0.5\n1500 0.5\n1500 0.9\n10000 1\n";
        let table = SizeTable::parse("a.cdf", table).expect("it is a table");
        // Half of the messages (0.1 + 0.4) have 64 bytes, and 0.4 have 1500 bytes. The lengths of
        // the other messages, 0.1, have a mean of (1500 + 10000) / 2 bytes.
        let expected = 0.5 * 64.0 + 0.4 * 1500.0 + 0.1 * 5750.0;
        let table = Sizes::Table(table);
        assert!((table.mean_bytes_1024ths() as f64 / 1024.0 - expected).abs() < 0.01);
        for sizes in
            [Sizes::Fixed(100), Sizes::Exponential(700), Sizes::bimodal(100, 9_000, 20), table]
        {
            let mean = sizes.mean_bytes_1024ths() as f64 / 1024.0;
            assert!((mean_drawn(&sizes) / mean - 1.0).abs() < 0.02, "{sizes:?}");
        }
    }

    #[test]
    fn a_table_interpolates_and_jumps() {
        let table = SizeTable::parse("a.cdf", "100 0\n200 0.5\n1000 0.5\n1000 1").expect("a table");
        assert_eq!([0, 250_000_000, 499_999_999].map(|share| table.at(share)), [100, 150, 199]);
        assert_eq!([500_000_000, 999_999_999].map(|share| table.at(share)), [1000, 1000]);
        assert_eq!(SizeTable::from_points("b", table.points().to_vec()), Ok(table));
    }

    #[test]
    fn errors_of_a_size_table_name_file_and_line() {
        let refused = |text: &str| SizeTable::parse("a.cdf", text).expect_err("none").to_string();
        assert!(refused("64 0.5\nx 1\n").starts_with("a.cdf:2: `x`"));
        assert!(refused("64 0.5\n32 1\n").contains("32 bytes after 64"));
        assert!(refused("64 0.5\n100 0.4\n").contains("the share falls"));
        assert!(refused("64 1.5\n").contains("not a share from 0 to 1"));
        assert!(refused("64 nan\n").contains("not a share"));
        assert!(refused("64 0.5 1\n").contains("two columns"));
        assert!(refused("0 1\n").contains("at least 1 byte"));
        assert!(refused("64 0.5\n").contains("truncated"));
        assert!(refused("").contains("the last share is 0"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_table_panic(
            text in "([0-9.#eE+-]{0,6}[ \n]){0,20}",
            share in 0..1_000_000_000_u32,
        ) {
            if let Ok(table) = SizeTable::parse("a.cdf", &text) {
                let (least, most) = (table.points()[0].0, table.points()[table.points().len() - 1].0);
                proptest::prop_assert!((least..=most).contains(&table.at(share)));
            }
        }
    }
}
