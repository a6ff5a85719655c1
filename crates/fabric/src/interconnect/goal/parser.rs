//! Reads traces.

use std::collections::BTreeMap;

use super::{Goal, Kind, Operation, Program};

/// Why a trace cannot be replayed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GoalError {
    /// A line means nothing.
    #[error("{file}:{line}: {what}")]
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The text ends within a rank.
    #[error("{file}: ends within rank {rank}, without its `}}`: the file is truncated")]
    Truncated {
        /// The file.
        file: String,
        /// The rank.
        rank: u32,
    },
    /// Operations require each other in a circle.
    #[error(
        "{file}: operations of rank {rank} require each other in a circle, one of them in line {line}"
    )]
    Circle {
        /// The file.
        file: String,
        /// The rank.
        rank: usize,
        /// Line of one of them.
        line: u32,
    },
}

pub(super) fn parse(file: &str, text: &str) -> Result<Goal, GoalError> {
    let mut parser = Parser { ranks: Vec::new(), current: None };
    for (index, line) in text.lines().enumerate() {
        parser.line(line, index + 1).map_err(|what| GoalError::Line {
            file: file.to_owned(),
            line: index + 1,
            what,
        })?;
    }
    if let Some(Block { rank, .. }) = parser.current {
        return Err(GoalError::Truncated { file: file.to_owned(), rank });
    }
    for (rank, program) in parser.ranks.iter().enumerate() {
        if let Some(line) = program.circle() {
            return Err(GoalError::Circle { file: file.to_owned(), rank, line });
        }
    }
    for program in &mut parser.ranks {
        program.unfinished = program.operations.len() as u64;
    }
    let unfinished = parser.ranks.iter().map(|program| program.unfinished).sum();
    Ok(Goal { ranks: parser.ranks, operations: unfinished, unfinished })
}

struct Parser<'a> {
    ranks: Vec<Program>,
    current: Option<Block<'a>>,
}

/// A rank being read.
struct Block<'a> {
    rank: u32,
    labels: BTreeMap<&'a str, u32>,
    operations: Vec<Operation>,
    /// What waits for the end, and for the start, of what.
    edges: Vec<(u32, u32)>,
    start_edges: Vec<(u32, u32)>,
}

impl<'a> Parser<'a> {
    fn line(&mut self, line: &'a str, number: usize) -> Result<(), String> {
        let content = line.split("//").next().unwrap_or_default().trim();
        let words: Vec<&str> = content.split_whitespace().collect();
        match (&mut self.current, words.as_slice()) {
            (_, []) => Ok(()),
            (None, ["num_ranks", count]) if self.ranks.is_empty() => {
                let count = integer(count, RANKS_MAX)?;
                if count == 0 {
                    return Err("no ranks".to_owned());
                }
                self.ranks = vec![Program::default(); count as usize];
                Ok(())
            }
            (None, ["rank", rank, "{"]) => self.begin(rank),
            (None, _) => Err(format!("`{content}` instead of `num_ranks N` or `rank R {{`")),
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
        if !program.operations.is_empty() {
            return Err(format!("rank {rank} comes twice"));
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
            *slot = program;
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

    /// `[LABEL:] calc T`, `send Nb to R [tag T]` or `recv Nb from R [tag T]`.
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
        let kind = match words {
            ["calc", time, options @ ..] => {
                tag(options)?;
                Kind::Calculate { time_ps: integer(time, CALCULATION_MAX_NS)? * 1_000 }
            }
            ["send", size, "to", to, options @ ..] => {
                Kind::Send { bytes: bytes(size)?, to: peer(to)?, tag: tag(options)? }
            }
            ["recv", size, "from", from, options @ ..] => {
                bytes(size)?;
                Kind::Receive { from: peer(from)?, tag: tag(options)? }
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
            return Err(format!("label `{label}` comes twice in rank {}", self.rank));
        }
        self.operations.push(Operation {
            kind,
            waits: 0,
            dependents: (0, 0),
            start_dependents: (0, 0),
            line: line as u32,
        });
        Ok(())
    }
}

impl Program {
    /// Line of an operation that can never start because of what it requires.
    fn circle(&self) -> Option<u32> {
        let mut waits: Vec<u32> = self.operations.iter().map(|operation| operation.waits).collect();
        let mut open: Vec<u32> =
            (0..).zip(&waits).filter(|(_, waits)| **waits == 0).map(|(at, _)| at).collect();
        while let Some(index) = open.pop() {
            let operation = &self.operations[index as usize];
            let range = |(start, count): (u32, u32)| start as usize..(start + count) as usize;
            let ends = &self.dependents[range(operation.dependents)];
            let starts = &self.start_dependents[range(operation.start_dependents)];
            for &dependent in ends.iter().chain(starts) {
                let left = &mut waits[dependent as usize];
                *left -= 1;
                if *left == 0 {
                    open.push(dependent);
                }
            }
        }
        let stuck = waits.iter().position(|waits| *waits > 0)?;
        self.operations.get(stuck).map(|operation| operation.line)
    }
}

/// The tag among `tag T`, `cpu C` and `nic N`; 0 without.
fn tag(options: &[&str]) -> Result<u32, String> {
    let mut tag = 0;
    for option in options.chunks(2) {
        match option {
            ["tag", value] => tag = integer(value, u32::MAX.into())? as u32,
            ["cpu" | "nic", value] => {
                integer(value, u32::MAX.into())?;
            }
            _ => return Err(format!("`{}` is no `tag T`, `cpu C` or `nic N`", option.join(" "))),
        }
    }
    Ok(tag)
}

fn integer(text: &str, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("`{text}` is no whole number up to {most}"))
}

fn unknown_rank(rank: u32, ranks: u32) -> String {
    format!("there is no rank {rank}, only 0 to {}", i64::from(ranks) - 1)
}

/// As many as a topology has hosts.
const RANKS_MAX: u64 = 1 << 20;
/// Eighteen minutes.
const CALCULATION_MAX_NS: u64 = 1 << 40;

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
        assert!(body("a: calc x").contains("`x` is no whole number"));
        assert!(body("a: calc 1\na: calc 2").contains("a.goal:4: label `a` comes twice"));
        assert!(body("a: calc 1\na requires b").contains("no operation `b`"));
        assert!(body("a: send 1b to 1 tagg 3").contains("`tagg 3`"));
        assert!(refused("rank 0 {\n").contains("there is no rank 0"));
        assert!(refused("num_ranks 0\n").contains("no ranks"));
        assert!(refused(&format!("{start}a: calc 1\n")).contains("truncated"));
        let circle = format!("{start}a: calc 1\nb: calc 1\na requires b\nb requires a\n}}\n");
        assert!(refused(&circle).contains("in a circle, one of them in line 3"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(num_ranks|rank|calc|send|recv|requires|[ab]:?|[0-3]b?|to|from|tag|[{}\n ]){0,60}") {
            let _ = parse("a.goal", &text);
        }
    }
}
