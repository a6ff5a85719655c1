//! Reads the output of `cargo test`: finds passed, failed and skipped tests, and the lines that a
//! person must see.

use crate::count::Count;
use crate::skips::Skips;

/// Parses the output of test programs line by line, and selects the lines that a person must see.
#[derive(Default)]
pub(crate) struct TestReader {
    reported: Count,
    /// Number of tests that passed, but printed that they cannot run here.
    skips: u64,
    /// Whether the current line is output of passed tests: between `successes:` and the next
    /// result.
    in_successes: bool,
    /// The test whose output is being read, until it is counted as skipped.
    test: Option<String>,
    /// The skipped tests.
    skipped: Skips,
}

impl TestReader {
    /// Reads a line. Returns the text to print for it, if any.
    pub(crate) fn handle_line(&mut self, line: &str) -> Option<String> {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.test = None;
            self.reported.add(parse_result(counts));
            return Some(line.to_owned());
        }
        match line {
            "successes:" => {
                self.in_successes = true;
                return None;
            }
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if self.in_successes {
            return self.handle_output_of_success(line);
        }
        let of_test = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
        if let Some((test, reason)) = of_test
            && reason.starts_with("ignored")
        {
            self.skipped.add(test, &reason.replacen("ignored, ", "ignored: ", 1));
        }
        let is_quiet = line.is_empty()
            || line.starts_with("running ")
            || (line.starts_with("test ") && line.ends_with(" ok"));
        (!is_quiet).then(|| line.to_owned())
    }

    fn handle_output_of_success(&mut self, line: &str) -> Option<String> {
        if let Some(header) = line.strip_prefix("---- ") {
            self.test = header.strip_suffix(" stdout ----").map(str::to_owned);
            return None;
        }
        let says_skip = line.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("skip"));
        if !says_skip {
            return None;
        }
        let test = self.test.take()?;
        self.skips += 1;
        self.skipped.add(&test, line);
        Some(format!("{test}: {line}"))
    }

    /// Returns the skipped tests.
    pub(crate) fn into_skipped(self) -> Skips {
        self.skipped
    }

    /// Returns the count so far; tests that skipped themselves count as skipped.
    pub(crate) fn count(&self) -> Count {
        Count {
            passed: self.reported.passed.saturating_sub(self.skips),
            failed: self.reported.failed,
            skipped: self.reported.skipped + self.skips,
        }
    }
}

/// Parses `ok. 3 passed; 0 failed; 1 ignored; …`.
fn parse_result(line: &str) -> Count {
    let counts = line.split_once(". ").map_or(line, |(_, counts)| counts);
    let mut count = Count::NONE;
    for part in counts.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => count.passed += number,
            "failed" => count.failed += number,
            "ignored" => count.skipped += number,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> (Count, Vec<String>) {
        let mut reader = TestReader::default();
        let shown = lines.lines().filter_map(|line| reader.handle_line(line)).collect();
        (reader.count(), shown)
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let (count, _) = read(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
        );
        assert_eq!(count, Count { passed: 5, failed: 5, skipped: 1 });
    }

    #[test]
    fn a_test_that_prints_skipped_counts_as_skipped_once() {
        let (count, shown) = read(
            "running 2 tests\ntest a ... ok\ntest b ... ok\n\nsuccesses:\n\n\
             ---- a stdout ----\nskipped: needs root\nskipped: again\n\n\
             ---- b stdout ----\nwe skip nothing here\n\n\
             successes:\n    a\n    b\n\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(count, Count { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(shown.first().map(String::as_str), Some("a: skipped: needs root"));
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn skipped_tests_are_listed_with_their_reasons() {
        let mut reader = TestReader::default();
        let lines = "test a ... ok\ntest slow ... ignored, measures\nsuccesses:\n\n\
             ---- a stdout ----\nskipped: needs root\n\n";
        for line in lines.lines() {
            reader.handle_line(line);
        }
        let listed = reader.skipped.to_string();
        assert!(listed.contains("measures\n    slow\nneeds root\n    a\n"), "{listed}");
    }

    #[test]
    fn the_report_of_a_failure_is_shown() {
        let (_, shown) = read(
            "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nskip me not\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored\n",
        );
        assert!(shown.iter().any(|line| line == "skip me not"));
    }
}
