use proptest::prelude::*;

use super::super::super::loggp::{LogGp, LogGpConfiguration};
use super::super::super::simulation::{HostCosts, Simulation};
use super::*;

const TEXT: &str = "num_ranks 2\n\
                    rank 0 {\na: calc 1000 cpu 1\nb: send 8b to 1 tag 7\nb requires a\n}\n\
                    rank 1 {\na: recv 8b from -1 tag 7 nic 2\n}\n";

/// The same trace as [`TEXT`], in binary form.
const BYTES: &[&[u8]] = &[
    &[0x7f, 0x10, 0, 0, 0, 0, 0, 0],
    &[2, 0, 0, 0, 1, 2],
    &[38, 0, 0, 0, 0, 0, 0, 0, 132, 0, 0, 0, 0, 0, 0, 0],
    &[132, 0, 0, 0, 0, 0, 0, 0, 183, 0, 0, 0, 0, 0, 0, 0],
    // Rank 0 has two operations; the first has no requirements.
    &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 3, 0, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
    &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    &[1, 0, 0, 0, 1, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    &[1, 0, 0, 0],
    // Rank 1 has one operation.
    &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 2],
    &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

fn replay(goal: Goal) -> u64 {
    let configuration = LogGpConfiguration::new(1_000_000, 100_000, 1_000);
    let placement: Vec<u32> = (0..goal.ranks()).collect();
    let fabric = LogGp::new(goal.ranks(), configuration);
    Simulation::new(fabric, goal, &placement, HostCosts::default()).run().expect("it ends").hash
}

fn refused(bytes: &[u8]) -> String {
    decode("a.bin", bytes).expect_err("it is wrong").to_string()
}

#[test]
fn the_binary_form_matches_its_description() {
    let goal = Goal::parse("a.goal", TEXT).expect("it is well formed");
    assert_eq!(goal.encode(), BYTES.concat());
    let decoded = Goal::read("a.bin", &BYTES.concat()).expect("it is well formed");
    assert_eq!(decoded.encode(), BYTES.concat());
    assert_eq!(replay(decoded), replay(goal));
}

#[test]
fn a_trace_runs_the_same_in_both_forms() {
    let text = Goal::ring(16, 20);
    let goal = Goal::parse("a.goal", &text).expect("it is well formed");
    let decoded = Goal::decode("a.bin", &goal.encode()).expect("it is well formed");
    assert_eq!(replay(decoded), replay(goal));
}

#[test]
fn every_truncated_file_is_reported() {
    let whole = BYTES.concat();
    for length in 8..whole.len() {
        let error = refused(&whole[..length]);
        assert!(error.contains(&format!("a.bin: ends at byte {length}, within")), "{error}");
    }
    assert!(refused(&[whole, vec![0]].concat()).contains("1 bytes follow the last rank"));
}

#[test]
fn impossible_values_are_reported_with_their_position() {
    let with = |offset: usize, byte: u8| {
        let mut bytes = BYTES.concat();
        bytes[offset] = byte;
        refused(&bytes)
    };
    assert!(with(0, 9).contains("instead of 4223"));
    assert!(refused(&2342_u64.to_le_bytes()).contains("overwritten"));
    assert!(with(8, 0).contains("0 ranks"));
    assert!(with(14, 39).contains("rank 0 is from 39 to"));
    assert!(with(62, 9).contains("byte 62: type 9 is neither"), "{}", with(62, 9));
    assert!(with(102, 3).contains("byte 102: there is no rank 3, only 0 to 1"));
    assert!(with(97, 0).contains("operation 1 waits for 0 others, but is a dependent of 1"));
    assert!(with(136, 5).contains("byte 136: dependent 5, but there are only 2 operations"));
    assert!(
        with(54, 1)
            .contains("operation 0 waits for no other operation, but is missing in this list")
    );
    assert!(with(81, 3).contains("truncated"));
    assert!(with(46, 1).contains("LogGOPSim2"), "{}", with(46, 1));
    let circle = "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\nb requires a\n}\n";
    let mut circle = Goal::parse("a.goal", circle).expect("well formed").encode();
    // This makes the first operation depend on itself.
    let last = circle.len() - 4;
    circle[last] = 0;
    let error = refused(&circle);
    assert!(error.contains("operation 0 waits for 0 others, but is a dependent of 1"), "{error}");
    let text = Goal::read("a", &[0xff, 0xfe]).expect_err("neither").to_string();
    assert!(text.contains("byte 0 is not UTF-8"), "{text}");
}

/// Generates texts of traces. An operation can require one earlier operation of its rank.
fn text() -> impl Strategy<Value = String> {
    let operation = (
        "calc [0-9]{1,6}( cpu [0-3])?|send [0-9]{1,5}b to [0-2]( tag [0-9])?( cpu 1)?|recv \
                      [0-9]{1,5}b from ([0-2]|-1)( tag ([0-9]|-1))?( nic [0-2])?",
        any::<u16>(),
    );
    let rank = prop::collection::vec(operation, 0..12);
    prop::collection::vec(rank, 3).prop_map(|ranks| {
        let blocks = ranks.iter().enumerate().map(|(rank, operations)| block(rank, operations));
        format!("num_ranks 3\n{}", blocks.collect::<String>())
    })
}

/// Returns the block of a rank. The number next to each operation selects the operation that it
/// requires.
fn block(rank: usize, operations: &[(String, u16)]) -> String {
    let lines = operations.iter().enumerate().map(|(at, (operation, choice))| {
        let of = usize::from(*choice) / 4;
        let requirement = match choice % 4 {
            1 if at > 0 => format!("l{at} requires l{}\n", of % at),
            2 if at > 0 => format!("l{at} irequires l{}\n", of % at),
            _ => String::new(),
        };
        format!("l{at}: {operation}\n{requirement}")
    });
    format!("rank {rank} {{\n{}}}\n", lines.collect::<String>())
}

proptest! {
    #[test]
    fn encoded_traces_decode_to_the_same_trace(text in text()) {
        let bytes = Goal::parse("a.goal", &text).expect("it is well formed").encode();
        let decoded = Goal::decode("a.bin", &bytes).expect("it was encoded");
        prop_assert_eq!(decoded.encode(), bytes);
    }

    /// If the decoder accepts some bytes, encoding the decoded trace returns the same bytes. Only
    /// the start positions of empty lists can differ.
    #[test]
    fn no_bytes_make_the_decoder_panic(
        text in text(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = Goal::parse("a.goal", &text).expect("it is well formed").encode();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(length.index(bytes.len() + 1));
        }
        if let Ok(goal) = Goal::decode("a.bin", &bytes) {
            let encoded = goal.encode();
            prop_assert_eq!(encoded.len(), bytes.len());
            let again = Goal::decode("a.bin", &encoded).expect("it was encoded");
            prop_assert_eq!(again.encode(), encoded);
        }
    }
}
