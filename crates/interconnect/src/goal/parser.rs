//! Parses traces in text form.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{ANY, Goal, Kind, Operation, Program, Unit};

/// Why a trace cannot be replayed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GoalError {
    /// A line of the text form is invalid.
    #[error("{file}:{line}: {what}")]
    Line {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Description of the mistake in the line.
        what: String,
    },
    /// The text ends within the block of a rank, before its `}`.
    #[error(
        "{file}: ends within rank {rank}, without its `}}`: the file is truncated; write it again"
    )]
    Truncated {
        /// Name of the file.
        file: String,
        /// Number of the rank.
        rank: u32,
    },
    /// The text ends before the blocks of all ranks.
    #[error(
        "{file}: ends without rank {rank}, though `num_ranks` is {ranks}: the file is truncated, or a rank with nothing to do lacks its `rank {rank} {{` and `}}`"
    )]
    MissingRank {
        /// Name of the file.
        file: String,
        /// The first rank that is missing.
        rank: usize,
        /// Number of ranks declared.
        ranks: usize,
    },
    /// Operations require each other in a circle, so they could never start.
    #[error(
        "{file}: operations of rank {rank} require each other in a circle, one of them in {place}; remove one of the requirements"
    )]
    Circle {
        /// Name of the file.
        file: String,
        /// Number of the rank.
        rank: usize,
        /// Line of one of the operations, or its number in the binary form.
        place: String,
    },
    /// A tag is too large for a trace with rendezvous, which uses two bits of tags.
    #[error(
        "{file}: {place}: the tag {tag} exceeds {most}, the maximum of a trace with rendezvous; \
         use smaller tags"
    )]
    Tag {
        /// Name of the file.
        file: String,
        /// Line of the operation, or its number in the binary form.
        place: String,
        /// Tag of the operation.
        tag: u32,
        /// Largest valid tag.
        most: u32,
    },
    /// The file is neither text nor in binary form.
    #[error(
        "{file}: byte {offset} is not UTF-8, so the file is not a GOAL text; a binary GOAL file begins with the number 4223 in 8 bytes"
    )]
    Neither {
        /// Name of the file.
        file: String,
        /// Offset of the byte, from 0.
        offset: usize,
    },
    /// The file is in binary form, but ends too early.
    #[error(
        "{file}: ends at byte {length}, within {within}: the file is truncated; convert or copy it again"
    )]
    Short {
        /// Name of the file.
        file: String,
        /// Length of the file, in bytes.
        length: usize,
        /// The item within which the file ends.
        within: String,
    },
    /// The file is in binary form, but has an invalid item.
    #[error("{file}: byte {offset}: {what}")]
    Binary {
        /// Name of the file.
        file: String,
        /// Offset of the byte, from 0.
        offset: usize,
        /// Description of the mistake at this offset.
        what: String,
    },
}

pub(super) fn parse(file: &str, text: &str) -> Result<Goal, GoalError> {
    let wrong = |line, what| GoalError::Line { file: file.to_owned(), line, what };
    let text = without_comments(text)
        .map_err(|line| wrong(line, "a comment does not end: `*/` is missing".to_owned()))?;
    let mut parser = Parser { ranks: Vec::new(), current: None };
    for (index, line) in text.lines().enumerate() {
        parser.line(line, index + 1).map_err(|what| wrong(index + 1, what))?;
    }
    if let Some(Block { rank, .. }) = parser.current {
        return Err(GoalError::Truncated { file: file.to_owned(), rank });
    }
    let count = parser.ranks.len();
    if count == 0 {
        return Err(wrong(1, "there is no `num_ranks N`".to_owned()));
    }
    let ranks: Vec<Program> = parser.ranks.into_iter().map_while(|program| program).collect();
    if ranks.len() < count {
        let file = file.to_owned();
        return Err(GoalError::MissingRank { file, rank: ranks.len(), ranks: count });
    }
    Goal::new(file, Unit::Line, ranks)
}

/// Replaces comments by spaces and keeps the line breaks. If a comment has no end, returns its line
/// as the error.
fn without_comments(text: &str) -> Result<Cow<'_, str>, usize> {
    if !text.contains("/*") {
        return Ok(Cow::Borrowed(text));
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        let (before, comment) = rest.split_at(start);
        clean.push_str(before);
        // A `/*` after `//` on the same line starts no comment.
        let line_start = clean.rfind('\n').map_or(0, |at| at + 1);
        if clean[line_start..].contains("//") {
            let end = comment.find('\n').unwrap_or(comment.len());
            clean.push_str(&comment[..end]);
            rest = &comment[end..];
            continue;
        }
        let end = comment.find("*/").ok_or(clean.lines().count().max(1))?;
        clean.push(' ');
        clean.extend(comment[..end].chars().filter(|letter| *letter == '\n'));
        rest = &comment[end + 2..];
    }
    clean.push_str(rest);
    Ok(Cow::Owned(clean))
}

/// Splits a line into words. A `{`, a `}` and the word after a label are separate words even
/// without a space before them.
fn words(line: &str) -> Vec<&str> {
    let content = line.split("//").next().unwrap_or_default();
    let mut words = Vec::new();
    for word in content.split_whitespace() {
        let label = word.find(':').map_or(0, |at| at + 1);
        let (label, rest) = word.split_at(label);
        let (rest, brace) = rest.split_at(rest.find(['{', '}']).unwrap_or(rest.len()));
        words.extend([label, rest, brace].into_iter().filter(|part| !part.is_empty()));
    }
    words
}

struct Parser<'a> {
    /// The program of each rank; `None` before its block was read.
    ranks: Vec<Option<Program>>,
    current: Option<Block<'a>>,
}

/// The block of the rank that the parser reads now.
struct Block<'a> {
    rank: u32,
    labels: BTreeMap<&'a str, u32>,
    operations: Vec<Operation>,
    /// Pairs of operations: in `edges`, the second operation waits for the end of the first. In
    /// `start_edges`, the second operation waits for the start of the first.
    edges: Vec<(u32, u32)>,
    start_edges: Vec<(u32, u32)>,
}

impl<'a> Parser<'a> {
    fn line(&mut self, line: &'a str, number: usize) -> Result<(), String> {
        let words = words(line);
        match (&mut self.current, words.as_slice()) {
            (_, []) => Ok(()),
            (None, ["num_ranks", count]) if self.ranks.is_empty() => {
                let count = integer(count, RANKS_MAX)?;
                if count == 0 {
                    return Err("no ranks".to_owned());
                }
                self.ranks = vec![None; count as usize];
                Ok(())
            }
            (None, ["rank", rank, "{"]) => self.begin(rank),
            (None, words) => {
                Err(format!("`{}` instead of `num_ranks N` or `rank R {{`", words.join(" ")))
            }
            (Some(_), ["}"]) => {
                self.end();
                Ok(())
            }
            (Some(block), [label, "requires", other]) => {
                let edge = (block.find(other)?, block.find(label)?);
                block.edges.push(edge);
                Ok(())
            }
            (Some(block), [label, "irequires", other]) => {
                let edge = (block.find(other)?, block.find(label)?);
                block.start_edges.push(edge);
                Ok(())
            }
            (Some(block), words) => block.operation(words, self.ranks.len() as u32, number),
        }
    }

    fn begin(&mut self, rank: &str) -> Result<(), String> {
        let rank = integer(rank, u32::MAX.into())? as u32;
        let program = self.ranks.get(rank as usize);
        let program = program.ok_or_else(|| unknown_rank(rank, self.ranks.len() as u32))?;
        if program.is_some() {
            return Err(format!("rank {rank} is defined twice"));
        }
        self.current = Some(Block {
            rank,
            labels: BTreeMap::new(),
            operations: Vec::new(),
            edges: Vec::new(),
            start_edges: Vec::new(),
        });
        Ok(())
    }

    fn end(&mut self) {
        let Some(mut block) = self.current.take() else { return };
        for &(_, dependent) in block.edges.iter().chain(&block.start_edges) {
            block.operations[dependent as usize].waits += 1;
        }
        let mut program = Program::default();
        block.edges.sort_unstable();
        block.start_edges.sort_unstable();
        for &(of, _) in &block.edges {
            block.operations[of as usize].dependents.1 += 1;
        }
        for &(of, _) in &block.start_edges {
            block.operations[of as usize].start_dependents.1 += 1;
        }
        let (mut start, mut start_of_starts) = (0, 0);
        for operation in &mut block.operations {
            operation.dependents.0 = start;
            operation.start_dependents.0 = start_of_starts;
            start += operation.dependents.1;
            start_of_starts += operation.start_dependents.1;
        }
        program.dependents = block.edges.iter().map(|&(_, dependent)| dependent).collect();
        program.start_dependents =
            block.start_edges.iter().map(|&(_, dependent)| dependent).collect();
        program.operations = block.operations;
        if let Some(slot) = self.ranks.get_mut(block.rank as usize) {
            *slot = Some(program);
        }
    }
}

impl<'a> Block<'a> {
    fn find(&self, label: &str) -> Result<u32, String> {
        self.labels
            .get(label)
            .copied()
            .ok_or_else(|| format!("no operation `{label}` before this line in rank {}", self.rank))
    }

    /// Parses `[LABEL:] calc T`, `send Nb to R [tag T]` or `recv Nb from R [tag T]`.
    fn operation(&mut self, words: &[&'a str], ranks: u32, line: usize) -> Result<(), String> {
        let (label, words) = match words.split_first() {
            Some((first, rest)) if first.ends_with(':') => (first.strip_suffix(':'), rest),
            _ => (None, words),
        };
        let peer = |rank: &str| {
            let rank = integer(rank, u32::MAX.into())? as u32;
            if rank < ranks { Ok(rank) } else { Err(unknown_rank(rank, ranks)) }
        };
        let bytes = |text: &str| {
            integer(text.strip_suffix('b').unwrap_or(text), u32::MAX.into()).map(|n| n as u32)
        };
        let mut places = Options::default();
        let kind = match words {
            ["calc", time, options @ ..] => {
                places.read(options)?;
                Kind::Calculate { time_ps: integer(time, CALCULATION_MAX_NS)? * 1_000 }
            }
            ["send", size, "to", to, options @ ..] => {
                places.read(options)?;
                if places.tag == ANY {
                    return Err("a send needs one tag; only receives can accept any tag".to_owned());
                }
                Kind::Send { bytes: bytes(size)?, to: peer(to)?, tag: places.tag }
            }
            ["recv", size, "from", from, options @ ..] => {
                places.read(options)?;
                let from = if *from == "-1" { ANY } else { peer(from)? };
                Kind::Receive { bytes: bytes(size)?, from, tag: places.tag }
            }
            _ => {
                return Err(format!(
                    "`{}` is neither `calc T` nor `send Nb to R` nor `recv Nb from R`",
                    words.join(" ")
                ));
            }
        };
        let index = self.operations.len() as u32;
        if let Some(label) = label
            && self.labels.insert(label, index).is_some()
        {
            return Err(format!("label `{label}` is defined twice in rank {}", self.rank));
        }
        self.operations.push(Operation {
            kind,
            waits: 0,
            dependents: (0, 0),
            start_dependents: (0, 0),
            place: line as u32,
            processor: places.processor,
            interface: places.interface,
        });
        Ok(())
    }
}

/// Options after an operation: `tag T`, `cpu C` and `nic N`. Each has the default 0.
#[derive(Default)]
struct Options {
    tag: u32,
    processor: u8,
    interface: u8,
}

impl Options {
    fn read(&mut self, options: &[&str]) -> Result<(), String> {
        for option in options.chunks(2) {
            match option {
                ["tag", "-1"] => self.tag = ANY,
                ["tag", value] => self.tag = integer(value, u64::from(ANY) - 1)? as u32,
                ["cpu", value] => self.processor = integer(value, u8::MAX.into())? as u8,
                ["nic", value] => self.interface = integer(value, u8::MAX.into())? as u8,
                _ => {
                    return Err(format!(
                        "`{}` is neither `tag T` nor `cpu C` nor `nic N`",
                        option.join(" ")
                    ));
                }
            }
        }
        Ok(())
    }
}

fn integer(text: &str, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("`{text}` is not a whole number from 0 to {most}"))
}

pub(super) fn unknown_rank(rank: u32, ranks: u32) -> String {
    let last = i64::from(ranks) - 1;
    format!("there is no rank {rank}, only 0 to {last}; correct it, or `num_ranks`")
}

/// Maximum number of ranks: the maximum number of hosts of a topology.
pub(super) const RANKS_MAX: u64 = 1 << 20;
/// Maximum duration of a calculation in nanoseconds: about eighteen minutes.
pub(super) const CALCULATION_MAX_NS: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse("a.goal", text).expect_err("it is wrong").to_string()
    }

    #[test]
    fn errors_name_file_and_line() {
        let start = "num_ranks 2\nrank 0 {\n";
        let body = |lines: &str| refused(&format!("{start}{lines}\n}}\n"));
        assert!(body("a: send 8b to 2").starts_with("a.goal:3: there is no rank 2, only 0 to 1"));
        assert!(body("a: sent 8b to 1").contains("`sent 8b to 1` is neither"));
        assert!(body("a: calc x").contains("`x` is not a whole number"));
        assert!(body("a: calc 1\na: calc 2").contains("a.goal:4: label `a` is defined twice"));
        assert!(body("a: calc 1\na requires b").contains("no operation `b`"));
        assert!(body("a: send 1b to 1 tagg 3").contains("`tagg 3`"));
        assert!(refused("rank 0 {\n").contains("there is no rank 0"));
        assert!(refused("num_ranks 0\n").contains("no ranks"));
        assert!(refused(&format!("{start}a: calc 1\n")).contains("truncated"));
        let circle =
            format!("{start}a: calc 1\nb: calc 1\na requires b\nb requires a\n}}\nrank 1 {{\n}}\n");
        assert!(refused(&circle).contains("in a circle, one of them in line 3"));
        let block = format!("{start}}}\n");
        assert!(refused(&block).contains("ends without rank 1"), "{}", refused(&block));
        assert!(refused(&format!("{block}rank 0 {{\n")).contains("rank 0 is defined twice"));
        assert!(refused(&format!("{block}/* rank 1 {{\n}}\n")).starts_with("a.goal:3: a comment"));
        assert!(body("a: send 1b to 1 tag -1").contains("one tag"));
        assert!(refused("").contains("there is no `num_ranks N`"));
    }

    #[test]
    fn spaces_and_comments_may_be_anywhere() {
        let text = "/* two\n ranks */ num_ranks 2 // /* not one\nrank 0{\na:calc 5 cpu 1\n/* x */\n}\n\
                    rank 1 { // none\n}\n";
        let goal = parse("a.goal", text).expect("it is well formed");
        assert_eq!(goal.ranks(), 2);
        assert_eq!(goal.ranks[0].operations.len(), 1);
        assert_eq!(goal.ranks[0].operations[0].place, 4);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(
            text in "(num_ranks|rank|calc|send|recv|requires|[ab]:?|[0-3]b?|to|from|tag|[{}\n ]){0,60}",
        ) {
            let _ = parse("a.goal", &text);
        }
    }
}
