//! Tests that the model accepts every allowed history and rejects all others.

use core::cell::RefCell;

use super::{DirectionModel, Posted, TargetMemory, Violation};
use crate::host::{Action, Completion, CompletionKind, Flags};

#[test]
fn a_completed_write_must_be_visible() {
    let mut case = Case::new();
    case.write(10, 4, RELAXED);
    case.place(0, 0..4);
    case.complete(0).expect("all of it is there");

    let mut case = Case::new();
    case.write(10, 4, RELAXED);
    case.place(0, 0..3);
    assert!(matches!(case.complete(0), Err(Violation::Memory { offset: 13, .. })));
}

#[test]
fn relaxed_write_may_be_early() {
    let mut case = Case::new();
    case.write(0, 200, RELAXED);
    case.write(300, 200, RELAXED);
    case.place(1, 0..200);
    case.check_all().expect("reordering is allowed");
    case.place(0, 0..200);
    case.complete(0).expect("first");
    case.complete(1).expect("second");
}

#[test]
fn a_late_duplicate_is_detected_after_a_newer_write_has_completed() {
    let mut case = Case::new();
    case.write(0, 300, STRICT);
    case.write(0, 300, STRICT);
    case.place(0, 0..300);
    case.place(1, 0..300);
    case.complete(0).expect("first");
    case.complete(1).expect("second");
    case.check_all().expect("nothing happened since");
    case.place(0, 100..200);
    assert!(matches!(case.check_all(), Err(Violation::Memory { .. })));
}

//= protocol.md: patch.6
#[test]
fn a_completed_patch_has_changed_its_words_and_nothing_between_them() {
    let complete = |placed: &[u32]| {
        let mut case = Case::new();
        case.patch(100, &[0, 2, 40], RELAXED);
        for &word in placed {
            case.place_word(0, word);
        }
        let completion = success(CompletionKind::Patch, 0, 20);
        case.model.complete(completion, Some(&case.memory))
    };
    complete(&[40, 0, 2]).expect("all of it is there");
    for (placed, offset) in [(vec![0, 2], 260), (vec![0, 40], 108), (vec![0, 1, 2, 40], 104)] {
        let found = complete(&placed);
        let is_found = matches!(found, Err(Violation::Memory { offset: at, .. }) if at == offset);
        assert!(is_found, "{placed:?}: {found:?}");
    }
}

//= protocol.md: relaxed.1
#[test]
fn only_operations_that_share_a_word_conflict() {
    let mut case = Case::new();
    case.patch(100, &[0, 2, 40], RELAXED);
    let conflicts = |low, high, flags| case.model.conflicts(&[(low, high)], flags);
    for (low, high) in [(103, 104), (0, 101), (111, 300), (260, 261), (90, 400), (108, 109)] {
        assert!(conflicts(low, high, RELAXED), "{low}..{high}");
        assert!(conflicts(low, high, STRICT), "{low}..{high}: a patch is never strict");
    }
    for (low, high) in [(104, 108), (112, 260), (264, 300), (0, 100)] {
        assert!(!conflicts(low, high, RELAXED), "{low}..{high}");
    }
    assert!(!conflicts(90, 400, Flags { fence_before: true, ..RELAXED }));
}

//= protocol.md: fence.1
#[test]
fn a_fenced_patch_visible_before_an_earlier_write_is_detected() {
    let mut case = Case::new();
    case.write(0, 300, RELAXED);
    case.patch(400, &[5, 70], Flags { fence_before: true, ..RELAXED });
    case.place_word(1, 70);
    assert!(matches!(case.probe(), Err(Violation::Memory { offset: 0..300, .. })));
    case.place(0, 0..300);
    case.probe().expect("the earlier write is complete now");
}

#[test]
fn a_fenced_write_visible_before_an_earlier_write_is_detected() {
    let mut case = Case::new();
    case.write(0, 300, RELAXED);
    case.write(400, 300, Flags { fence_before: true, ..RELAXED });
    case.place(1, 0..1);
    assert!(matches!(case.probe(), Err(Violation::Memory { offset: 0..300, .. })));

    case.place(0, 0..300);
    case.probe().expect("the earlier write is complete now");
}

#[test]
fn forward_fence_holds_back_all_later_writes() {
    let mut case = Case::new();
    case.write(0, 300, Flags { fence_after: true, ..RELAXED });
    case.write(400, 300, RELAXED);
    case.write(800, 300, RELAXED);
    case.place(2, 0..1);
    assert!(matches!(case.probe(), Err(Violation::Memory { offset: 0..300, .. })));
    case.place(0, 0..300);
    case.probe().expect("only the fenced write had to come first");
}

#[test]
fn strict_body_may_be_early_but_its_tail_may_not() {
    let mut case = Case::new();
    case.write(0, 300, RELAXED);
    case.write(400, 300, STRICT);
    case.place(1, 0..299);
    case.probe().expect("bodies may be early");
    case.check_all().expect("bodies may be early");
    case.place(1, 299..300);
    assert!(matches!(case.probe(), Err(Violation::Memory { offset: 0..300, .. })));
}

#[test]
fn a_strict_tail_before_its_own_body_is_detected() {
    let mut case = Case::new();
    case.write(0, 300, STRICT);
    case.place(0, 100..300);
    assert!(matches!(case.probe(), Err(Violation::Memory { offset: 0..100, .. })));
}

#[test]
fn overlapping_strict_writes_must_leave_the_later_bytes() {
    let mut case = Case::new();
    case.write(0, 300, STRICT);
    case.write(100, 300, STRICT);
    // All bytes of the later write except the last were placed early. The earlier write must not
    // overwrite them.
    case.place(1, 0..299);
    case.place(0, 0..100);
    case.check_all().expect("allowed so far");
    case.complete(0).expect("what is missing was overwritten by the later write");
    case.place(1, 299..300);
    case.complete(1).expect("second");

    let mut case = Case::new();
    case.write(0, 300, STRICT);
    case.write(100, 300, STRICT);
    case.place(1, 0..300);
    case.place(0, 0..300);
    case.complete(0).expect("not decided yet");
    assert!(matches!(case.complete(1), Err(Violation::Memory { offset: 100..300, .. })));
}

#[test]
fn bytes_without_a_write_are_detected() {
    let mut case = Case::new();
    case.write(0, 300, RELAXED);
    case.memory.borrow_mut()[500] = 7;
    assert!(matches!(case.check_all(), Err(Violation::Memory { offset: 500, found: 7, .. })));
}

#[test]
fn completions_arrive_once_in_order() {
    let mut case = Case::new();
    case.write(0, 8, RELAXED);
    case.write(8, 8, Flags { signalled: false, ..RELAXED });
    case.write(16, 8, RELAXED);
    for number in 0..3 {
        case.place(number, 0..8);
    }
    assert!(matches!(case.complete(2), Err(Violation::CompletionOrder { expected: Some(0), .. })));
    case.complete(0).expect("its turn");
    assert!(matches!(case.complete(0), Err(Violation::CompletionOrder { .. })));
    let finished = case.complete(2).expect("the silent one is skipped");
    assert_eq!(finished, [1, 2]);
    assert!(matches!(case.complete(3), Err(Violation::CompletionOrder { expected: None, .. })));
}

#[test]
fn unsignalled_success_must_not_be_reported() {
    let mut case = Case::new();
    case.write(0, 8, Flags { signalled: false, ..RELAXED });
    case.place(0, 0..8);
    assert!(matches!(case.complete(0), Err(Violation::CompletionFacts { .. })));
}

#[test]
fn a_notification_proves_that_the_write_is_visible() {
    let mut case = Case::new();
    case.write_with_immediate(0, 300, 77);
    let notification = Completion {
        kind: CompletionKind::Notification,
        context: 0,
        success: true,
        length_bytes: 300,
        immediate: Some(77),
        invalidated: None,
        fault: None,
    };
    let mut early = Case::new();
    early.write_with_immediate(0, 300, 77);
    assert!(matches!(early.deliver(notification), Err(Violation::Memory { .. })));

    case.place(0, 0..300);
    let altered = Completion { immediate: Some(78), ..notification };
    let mut other = Case::new();
    other.write_with_immediate(0, 300, 77);
    assert!(matches!(other.deliver(altered), Err(Violation::Delivery { .. })));
    case.deliver(notification).expect("as it was sent");
    assert!(matches!(case.deliver(notification), Err(Violation::Delivery { .. })));
}

#[test]
fn a_read_returns_the_bytes_at_its_turn_or_of_an_unordered_later_write() {
    for (later, allowed) in [(RELAXED, true), (Flags { fence_before: true, ..RELAXED }, false)] {
        let mut case = Case::new();
        case.write(0, 8, RELAXED);
        case.read(0, 8);
        case.write(0, 8, later);
        case.place(0, 0..8);
        let (old, new) = (case.content(0), case.content(2));
        let finished = case.model.complete(success(CompletionKind::Write, 0, 8), None);
        finished.expect("first write");
        let finished =
            case.model.complete(success(CompletionKind::Read, 1, 8), None).expect("read");
        assert!(case.model.check_result(&finished[0], &old).is_ok());
        assert_eq!(case.model.check_result(&finished[0], &new).is_ok(), allowed);
        assert!(case.model.check_result(&finished[0], &[1; 8]).is_err());
    }
}

#[test]
fn unordered_overlaps_are_recorded_as_conflicts() {
    let mut case = Case::new();
    case.write(100, 100, STRICT);
    assert!(!case.model.conflicts(&[(0, 100)], RELAXED));
    assert!(!case.model.conflicts(&[(200, 300)], RELAXED));
    assert!(case.model.conflicts(&[(150, 151)], RELAXED));
    assert!(!case.model.conflicts(&[(150, 151)], STRICT));
    assert!(!case.model.conflicts(&[(150, 151)], Flags { fence_before: true, ..RELAXED }));
    case.write(500, 1, Flags { fence_after: true, ..RELAXED });
    assert!(!case.model.conflicts(&[(150, 151)], RELAXED));
    assert!(!case.model.conflicts(&[(500, 501)], RELAXED));
}

const RELAXED: Flags =
    Flags { fence_before: false, fence_after: false, strict: false, signalled: true };
const STRICT: Flags = Flags { strict: true, ..RELAXED };

/// A model, and the memory that is compared with it.
struct Case {
    model: DirectionModel,
    memory: RefCell<Vec<u8>>,
    contents: Vec<(u32, Vec<u8>)>,
}

impl TargetMemory for RefCell<Vec<u8>> {
    fn read(&self, offset: u32, into: &mut [u8]) {
        let start = offset as usize;
        into.copy_from_slice(&self.borrow()[start..start + into.len()]);
    }
}

impl Case {
    fn new() -> Self {
        Self {
            model: DirectionModel::new(2_000),
            memory: RefCell::new(vec![0; 2_000]),
            contents: Vec::new(),
        }
    }

    fn write(&mut self, offset: u32, length_bytes: u32, flags: Flags) {
        self.post(Action::Write, offset, length_bytes, flags, None);
    }

    fn write_with_immediate(&mut self, offset: u32, length_bytes: u32, immediate: u32) {
        self.post(Action::Write, offset, length_bytes, RELAXED, Some(immediate));
    }

    fn read(&mut self, offset: u32, length_bytes: u32) {
        self.post(Action::Read, offset, length_bytes, RELAXED, None);
    }

    fn post(
        &mut self,
        action: Action,
        offset: u32,
        length_bytes: u32,
        flags: Flags,
        immediate: Option<u32>,
    ) {
        // Each write has its own byte value, so that bytes never match by accident.
        let byte = self.contents.len() as u8 + 0x10;
        let content =
            if action == Action::Write { vec![byte; length_bytes as usize] } else { Vec::new() };
        self.contents.push((offset, content.clone()));
        self.model.post(Posted {
            action,
            flags,
            offset,
            length_bytes,
            immediate,
            invalidates: None,
            content,
            words: Vec::new(),
            local_offset: 0,
            returns: None,
        });
    }

    /// Posts a patch of these words from `area` on. Each patch has its own byte value.
    fn patch(&mut self, area: u32, words: &[u32], flags: Flags) {
        let byte = self.contents.len() as u8 + 0x10;
        let content = vec![byte; 4 * words.len()];
        self.contents.push((area, content.clone()));
        self.model.post(Posted {
            action: Action::Patch,
            flags,
            offset: area,
            length_bytes: 8 + content.len() as u32,
            immediate: None,
            invalidates: None,
            content,
            words: words.to_vec(),
            local_offset: 0,
            returns: None,
        });
    }

    /// Stores one word of a patch in memory.
    fn place_word(&mut self, number: usize, word: u32) {
        let (area, content) = &self.contents[number];
        let at = (area + 4 * word) as usize;
        self.memory.borrow_mut()[at..at + 4].copy_from_slice(&content[..4]);
    }

    fn content(&self, number: usize) -> Vec<u8> {
        self.contents[number].1.clone()
    }

    /// Stores some bytes of a write in memory.
    fn place(&mut self, number: usize, range: core::ops::Range<usize>) {
        let (offset, content) = &self.contents[number];
        let start = *offset as usize + range.start;
        self.memory.borrow_mut()[start..start + range.len()].copy_from_slice(&content[range]);
    }

    fn complete(&mut self, number: u64) -> Result<Vec<u64>, Violation> {
        let length = self.contents.get(number as usize).map_or(0, |(_, content)| content.len());
        let completion = success(CompletionKind::Write, number, length as u32);
        let finished = self.model.complete(completion, Some(&self.memory))?;
        self.model.forget_completed();
        Ok(finished.iter().map(|finished| finished.number).collect())
    }

    fn deliver(&mut self, completion: Completion) -> Result<(), Violation> {
        self.model.deliver(completion, &[], Some(&self.memory))
    }

    fn probe(&mut self) -> Result<(), Violation> {
        self.model.probe(&self.memory)
    }

    fn check_all(&mut self) -> Result<(), Violation> {
        self.model.check_all(&self.memory)
    }
}

const fn success(kind: CompletionKind, context: u64, length_bytes: u32) -> Completion {
    Completion {
        kind,
        context,
        success: true,
        length_bytes,
        immediate: None,
        invalidated: None,
        fault: None,
    }
}
