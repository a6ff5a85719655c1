//! Counts of passed, failed and skipped tests.

/// Numbers of tests by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Count {
    pub(crate) const NONE: Self = Self { passed: 0, failed: 0, skipped: 0 };
    pub(crate) const ONE_PASSED: Self = Self { passed: 1, ..Self::NONE };
    pub(crate) const ONE_FAILED: Self = Self { failed: 1, ..Self::NONE };
    pub(crate) const ONE_SKIPPED: Self = Self { skipped: 1, ..Self::NONE };

    /// Parses a line that [`Count`] prints. Returns `None` for any other line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut counts = line.split(", ");
        let mut next = |what| counts.next()?.strip_suffix(what)?.parse().ok();
        let count =
            Self { passed: next(" passed")?, failed: next(" failed")?, skipped: next(" skipped")? };
        counts.next().is_none().then_some(count)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_has_the_documented_format() {
        let count = Count { passed: 3, failed: 0, skipped: 1 };
        assert_eq!(count.to_string(), "3 passed, 0 failed, 1 skipped");
        assert_eq!(Count::parse("3 passed, 0 failed, 1 skipped"), Some(count));
        for other in [
            "",
            "3 passed",
            "3 passed, 0 failed, 1 skipped, 2 more",
            "x passed, 0 failed, 1 skipped",
        ] {
            assert_eq!(Count::parse(other), None, "{other}");
        }
    }
}
