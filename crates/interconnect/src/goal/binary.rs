//! The binary form of traces, which LogGOPSim's `txt2bin` writes. All integers are little-endian
//! and unaligned.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | 4223; 2342 after a simulation that consumed the file |
//! | 4, 1, 1 | count R of ranks; index of the last processor; index of the last interface |
//! | R × (8, 8) | start and end of each rank's part, as offsets from byte 8 of the file |
//! | 4, 4 | in each part: count N of operations; count of operations without requirements |
//! | 4 each | indices of the operations without requirements |
//! | N × 39 | operations |
//! | 4 each | list of dependents: indices of operations, grouped by the operation they depend on |
//!
//! Fields of an operation, with their length in bytes:
//!
//! * count of requirements (4)
//! * type (1): 1 for send, 2 for receive, 3 for calculation
//! * peer (4), bytes or nanoseconds (8), tag (4), processor (1), interface (1)
//! * dependents on its end: their count, and the position of the first in the list (4, 4)
//! * dependents on its start: their count, and the position of the first in the list (4, 4)

use super::parser::{CALCULATION_MAX_NS, GoalError, RANKS_MAX, unknown_rank};
use super::{ANY, Goal, Kind, Operation, Program, Unit};

/// Returns whether a file starts with a magic number of the binary form.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    let first = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
    matches!(first, Some(MAGIC | MAGIC_USED_UP))
}

pub(super) fn decode(file: &str, bytes: &[u8]) -> Result<Goal, GoalError> {
    let mut reader = Reader { file, bytes, at: 0 };
    match reader.u64("the number at the start of the file")? {
        MAGIC => {}
        MAGIC_USED_UP => {
            return Err(reader.wrong(0, "a simulation has overwritten the file; convert it again"));
        }
        other => return Err(reader.wrong(0, &format!("{other} instead of {MAGIC}"))),
    }
    let ranks = reader.u32("the number of ranks")?;
    if ranks == 0 || u64::from(ranks) > RANKS_MAX {
        let what = format!("{ranks} ranks instead of 1 to {RANKS_MAX}");
        return Err(reader.wrong(BASE, &what));
    }
    reader.take(2, "the numbers of processors and interfaces")?;
    let mut table = reader.part(ranks as usize * 16, "the table of ranks")?;
    let mut programs = Vec::with_capacity(ranks as usize);
    for rank in 0..ranks {
        let at = table.at;
        let (start, end) = (table.u64("the table of ranks")?, table.u64("the table of ranks")?);
        // The parts of ranks must be adjacent. If they could overlap, a short file could describe
        // more operations than fit in memory.
        if start != (reader.at - BASE) as u64 || end < start {
            let expected = reader.at - BASE;
            let what = format!(
                "rank {rank} is from {start} to {end} instead of from {expected} to a later place"
            );
            return Err(reader.wrong(at, &what));
        }
        let length = usize::try_from(end - start).unwrap_or(usize::MAX);
        let mut part = reader.part(length, &format!("rank {rank}"))?;
        programs.push(program(&mut part, rank, ranks)?);
    }
    if reader.at < bytes.len() {
        let left = bytes.len() - reader.at;
        return Err(reader.wrong(reader.at, &format!("{left} bytes follow the last rank")));
    }
    Goal::new(file, Unit::Operation, programs)
}

pub(super) fn encode(goal: &Goal) -> Vec<u8> {
    let operations = || goal.ranks.iter().flat_map(|program| &program.operations);
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(goal.ranks().to_le_bytes());
    bytes.push(operations().map(|operation| operation.processor).max().unwrap_or_default());
    bytes.push(operations().map(|operation| operation.interface).max().unwrap_or_default());
    let table = bytes.len();
    bytes.resize(table + goal.ranks.len() * 16, 0);
    for (rank, program) in goal.ranks.iter().enumerate() {
        let start = (bytes.len() - BASE) as u64;
        encode_program(program, &mut bytes);
        let end = (bytes.len() - BASE) as u64;
        let slot = table + rank * 16;
        bytes[slot..slot + 8].copy_from_slice(&start.to_le_bytes());
        bytes[slot + 8..slot + 16].copy_from_slice(&end.to_le_bytes());
    }
    bytes
}

fn encode_program(program: &Program, bytes: &mut Vec<u8>) {
    let word = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_le_bytes());
    let free: Vec<u32> = (0..)
        .zip(&program.operations)
        .filter(|(_, operation)| operation.waits == 0)
        .map(|(number, _)| number)
        .collect();
    word(bytes, program.operations.len() as u32);
    word(bytes, free.len() as u32);
    for number in free {
        word(bytes, number);
    }
    let mut appendix = Vec::new();
    for operation in &program.operations {
        let (kind, peer, size, tag) = match operation.kind {
            Kind::Send { to, bytes, tag } => (SEND, to, u64::from(bytes), tag),
            Kind::Receive { from, bytes, tag } => (RECEIVE, from, u64::from(bytes), tag),
            Kind::Calculate { time_ps } => (CALCULATE, 0, time_ps / 1_000, 0),
        };
        word(bytes, operation.waits);
        bytes.push(kind);
        word(bytes, peer);
        bytes.extend(size.to_le_bytes());
        word(bytes, tag);
        bytes.extend([operation.processor, operation.interface]);
        let lists = [
            (&program.dependents, operation.dependents),
            (&program.start_dependents, operation.start_dependents),
        ];
        for (list, (start, count)) in lists {
            word(bytes, count);
            word(bytes, appendix.len() as u32);
            appendix.extend_from_slice(&list[start as usize..(start + count) as usize]);
        }
    }
    for number in appendix {
        word(bytes, number);
    }
}

/// Decodes the part of a rank completely.
fn program(part: &mut Reader, rank: u32, ranks: u32) -> Result<Program, GoalError> {
    let within = format!("rank {rank}");
    let begin = part.at;
    let (count, free) = (part.u32(&within)? as usize, part.u32(&within)? as usize);
    let free_list = part.part(free.saturating_mul(4), &within)?;
    let mut nodes = part.part(count.saturating_mul(OPERATION_BYTES), &within)?;
    let appendix = Reader { ..*part };
    if !appendix.left().is_multiple_of(4) {
        let what = format!(
            "rank {rank} has {count} operations of {OPERATION_BYTES} bytes, which do not fit its \
             length; LogGOPSim2 and other variants have longer operations"
        );
        return Err(part.wrong(begin, &what));
    }
    let mut program = Program { operations: Vec::with_capacity(count), ..Program::default() };
    let mut used = 0;
    for _ in 0..count {
        let operation = operation(&mut nodes, &within, ranks)?;
        let place = program.operations.len() as u32;
        let mut list = |all: &mut Vec<u32>| {
            let start = all.len() as u32;
            let length = dependents(&mut nodes, appendix, used, count, &within, all)?;
            used = used.saturating_add(length);
            Ok((start, length))
        };
        let ends = list(&mut program.dependents)?;
        let starts = list(&mut program.start_dependents)?;
        program.operations.push(Operation {
            place,
            dependents: ends,
            start_dependents: starts,
            ..operation
        });
    }
    if used as usize * 4 != appendix.left() {
        let entries = appendix.left() / 4;
        let what = format!("rank {rank} has room for {entries} dependents and uses {used}");
        return Err(part.wrong(appendix.at, &what));
    }
    check_waits(&program, begin, part)?;
    check_free(&program, free_list, &within)?;
    Ok(program)
}

/// Appends the dependents of an operation. In the file, these dependents must come directly after
/// the `used` dependents of earlier operations. Returns how many dependents the operation has.
fn dependents(
    nodes: &mut Reader,
    appendix: Reader,
    used: u32,
    count: usize,
    within: &str,
    all: &mut Vec<u32>,
) -> Result<u32, GoalError> {
    let at = nodes.at;
    let (length, first) = (nodes.u32(within)?, nodes.u32(within)?);
    // If an operation has no dependents, the position of the first dependent has no meaning.
    if length > 0 && first != used {
        let what = format!("dependents begin at {first} instead of {used}");
        return Err(nodes.wrong(at, &what));
    }
    appendix.numbers(first, length, count, within, all)?;
    Ok(length)
}

/// Decodes an operation, except for its dependents.
fn operation(nodes: &mut Reader, within: &str, ranks: u32) -> Result<Operation, GoalError> {
    let at = nodes.at;
    let waits = nodes.u32(within)?;
    let kind = nodes.u8(within)?;
    let peer = nodes.u32(within)?;
    let size = nodes.u64(within)?;
    let tag = nodes.u32(within)?;
    let (processor, interface) = (nodes.u8(within)?, nodes.u8(within)?);
    let length = || {
        let what = format!("a message of {size} bytes is longer than {}", u32::MAX);
        u32::try_from(size).map_err(|_| nodes.wrong(at + 9, &what))
    };
    let kind = match kind {
        SEND if peer >= ranks => return Err(nodes.wrong(at + 5, &unknown_rank(peer, ranks))),
        SEND if tag == ANY => return Err(nodes.wrong(at + 17, "a message has one tag")),
        SEND => Kind::Send { to: peer, bytes: length()?, tag },
        RECEIVE if peer >= ranks && peer != ANY => {
            return Err(nodes.wrong(at + 5, &unknown_rank(peer, ranks)));
        }
        RECEIVE => Kind::Receive { from: peer, bytes: length()?, tag },
        CALCULATE if size > CALCULATION_MAX_NS => {
            let what = format!("a calculation of {size} ns is longer than {CALCULATION_MAX_NS}");
            return Err(nodes.wrong(at + 9, &what));
        }
        CALCULATE => Kind::Calculate { time_ps: size * 1_000 },
        other => {
            let what = format!("type {other} is neither send (1), receive (2) nor calculation (3)");
            return Err(nodes.wrong(at + 4, &what));
        }
    };
    Ok(Operation {
        kind,
        waits,
        dependents: (0, 0),
        start_dependents: (0, 0),
        place: 0,
        processor,
        interface,
    })
}

/// Checks the number of requirements of each operation. This number must equal the number of
/// operations that list the operation as a dependent.
fn check_waits(program: &Program, begin: usize, part: &Reader) -> Result<(), GoalError> {
    let mut waits = vec![0_u32; program.operations.len()];
    for &dependent in program.dependents.iter().chain(&program.start_dependents) {
        waits[dependent as usize] += 1;
    }
    for (operation, waits) in program.operations.iter().zip(waits) {
        if operation.waits != waits {
            let what = format!(
                "operation {} waits for {} others, but is a dependent of {waits}",
                operation.place, operation.waits
            );
            return Err(part.wrong(begin, &what));
        }
    }
    Ok(())
}

/// Checks that the list of operations without requirements is correct.
fn check_free(program: &Program, mut list: Reader, within: &str) -> Result<(), GoalError> {
    let free = (0..).zip(&program.operations).filter(|(_, operation)| operation.waits == 0);
    for (number, _) in free {
        let at = list.at;
        if list.left() == 0 || list.u32(within)? != number {
            let what = format!(
                "operation {number} waits for no other operation, but is missing in this list"
            );
            return Err(list.wrong(at, &what));
        }
    }
    match list.left() {
        0 => Ok(()),
        _ => Err(list
            .wrong(list.at, "the list of operations that wait for no other operation is too long")),
    }
}

/// Reads numbers from a file, one after the other.
#[derive(Clone, Copy)]
struct Reader<'a> {
    file: &'a str,
    /// The file, up to the end of the part being read.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: usize, within: &str) -> Result<&'a [u8], GoalError> {
        let end = self.at.saturating_add(count);
        let Some(taken) = self.bytes.get(self.at..end) else {
            return Err(GoalError::Short {
                file: self.file.to_owned(),
                length: self.bytes.len(),
                within: within.to_owned(),
            });
        };
        self.at = end;
        Ok(taken)
    }

    /// Returns a reader for the next `count` bytes, and skips these bytes.
    fn part(&mut self, count: usize, within: &str) -> Result<Self, GoalError> {
        let at = self.at;
        self.take(count, within)?;
        Ok(Self { bytes: &self.bytes[..self.at], at, file: self.file })
    }

    fn array<const N: usize>(&mut self, within: &str) -> Result<[u8; N], GoalError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, within)?);
        Ok(array)
    }

    fn u8(&mut self, within: &str) -> Result<u8, GoalError> {
        self.array(within).map(u8::from_le_bytes)
    }

    fn u32(&mut self, within: &str) -> Result<u32, GoalError> {
        self.array(within).map(u32::from_le_bytes)
    }

    fn u64(&mut self, within: &str) -> Result<u64, GoalError> {
        self.array(within).map(u64::from_le_bytes)
    }

    /// Appends `length` operation indices, starting with entry `first` of this part. Each index
    /// must be below `count`.
    fn numbers(
        mut self,
        first: u32,
        length: u32,
        count: usize,
        within: &str,
        all: &mut Vec<u32>,
    ) -> Result<(), GoalError> {
        if length == 0 {
            return Ok(());
        }
        self.take((first as usize).saturating_mul(4), within)?;
        let mut list = self.part((length as usize).saturating_mul(4), within)?;
        all.reserve(length as usize);
        while list.left() > 0 {
            let at = list.at;
            let number = list.u32(within)?;
            if number as usize >= count {
                let what = format!("dependent {number}, but there are only {count} operations");
                return Err(list.wrong(at, &what));
            }
            all.push(number);
        }
        Ok(())
    }

    fn wrong(&self, offset: usize, what: &str) -> GoalError {
        GoalError::Binary { file: self.file.to_owned(), offset, what: what.to_owned() }
    }
}

/// Magic number at the start of a file.
const MAGIC: u64 = 4223;
/// Magic number of a file that a run of LogGOPSim has used. If LogGOPSim is configured to save
/// memory, it counts down in the file itself, so the counts in the file are no longer valid.
const MAGIC_USED_UP: u64 = 2342;
/// The offsets in the table of ranks count from this byte of the file.
const BASE: usize = 8;
const OPERATION_BYTES: usize = 39;
const SEND: u8 = 1;
const RECEIVE: u8 = 2;
const CALCULATE: u8 = 3;

#[cfg(test)]
mod tests;
