//! Explains why ranks wait although no events remain.

use std::fmt::Write as _;

use super::{ANY, State};

/// The receive that a rank waits for.
#[derive(Clone, Copy)]
struct Wait {
    source: u32,
    /// Tag of the message; `None` in a collective.
    tag: Option<u32>,
}

/// Describes what the first ranks wait for. If ranks wait for each other in a circle, the text
/// starts with the circle.
pub(super) fn diagnose(ranks: &[State], has_ended: &[bool]) -> String {
    let waits: Vec<Option<Wait>> = ranks.iter().map(awaited).collect();
    let left = has_ended.iter().filter(|ended| !**ended).count();
    let mut text = format!("{left} of {} ranks have not ended", ranks.len());
    // Writing to a `String` cannot fail.
    if let Some(circle) = circle(&waits) {
        let names: Vec<String> = circle.iter().map(|rank| format!("rank {rank}")).collect();
        let _ = write!(text, "; these wait for each other in a circle: {}", names.join(" -> "));
    }
    let unfinished = (0..).zip(has_ended).filter(|(_, ended)| !**ended);
    for (rank, _) in unfinished.take(SHOWN_MAX) {
        let _ = write!(text, "\nrank {rank} waits for {}", describe(waits[rank], has_ended));
    }
    if left > SHOWN_MAX {
        let _ = write!(text, "\nand {} more", left - SHOWN_MAX);
    }
    text
}

/// Returns the first receive for which a rank waits.
fn awaited(state: &State) -> Option<Wait> {
    let first = |matching: &super::Matching<_>| {
        matching.waiting().find(|(_, _, slot)| state.requests.is_awaited(*slot))
    };
    if let Some((source, _, _)) = first(&state.collective) {
        return Some(Wait { source, tag: None });
    }
    first(&state.program).map(|(source, tag, _)| Wait { source, tag: Some(tag) })
}

fn describe(wait: Option<Wait>, has_ended: &[bool]) -> String {
    let Some(Wait { source, tag }) = wait else {
        return "an event that is not a message".to_owned();
    };
    let what = match tag {
        None => "a message of a collective".to_owned(),
        Some(ANY) => "a message with any tag".to_owned(),
        Some(tag) => format!("a message with tag {tag}"),
    };
    match source {
        ANY => format!("{what} from any rank"),
        source if has_ended.get(source as usize) == Some(&true) => {
            format!("{what} from rank {source}, which has ended")
        }
        source => format!("{what} from rank {source}"),
    }
}

/// Returns a circle of ranks: each rank waits for the next one, and the last entry repeats the
/// first.
fn circle(waits: &[Option<Wait>]) -> Option<Vec<u32>> {
    let mut seen_from = vec![None; waits.len()];
    for start in 0..waits.len() as u32 {
        let mut path = Vec::new();
        let mut at = start;
        while let Some(Some(wait)) = waits.get(at as usize) {
            match seen_from[at as usize] {
                Some(origin) if origin == start => {
                    let begin = path.iter().position(|rank| *rank == at)?;
                    path.push(at);
                    return Some(path.split_off(begin));
                }
                Some(_) => break,
                None => seen_from[at as usize] = Some(start),
            }
            path.push(at);
            at = wait.source;
        }
    }
    None
}

/// Maximum number of ranks that the text names.
const SHOWN_MAX: usize = 8;
