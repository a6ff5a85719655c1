use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn packets_in_order_are_acknowledged_once_per_batch() {
    let mut received = ReceivedPackets::default();
    for number in 0..127 {
        arrive(&mut received, number);
        assert!(!received.acknowledgement_due(NOW), "after {number}");
    }
    assert_eq!(received.deadline(), NOW.after_ns(25_000));
    arrive(&mut received, 127);
    assert!(received.acknowledgement_due(NOW));
    let block = received.write_block(NOW, LinkIndex(3)).unwrap();
    assert_eq!((block.link, block.run, block.largest), (LinkIndex(3), 128, 127));
    assert_eq!((block.words, block.marked, block.delay), (0, 0, AckDelay(0)));
    assert_eq!(received.deadline(), Instant::NEVER);
    assert!(!received.acknowledgement_owed());
}

//= protocol.md: ack.7
#[test]
fn a_single_packet_is_acknowledged_after_the_delay() {
    let mut received = ReceivedPackets::default();
    arrive(&mut received, 0);
    assert!(received.acknowledgement_owed());
    assert!(!received.acknowledgement_due(NOW.after_ns(24_999)));
    assert!(received.acknowledgement_due(NOW.after_ns(25_000)));
}

//= protocol.md: ack.7
#[test]
fn an_acknowledgement_within_an_operation_waits_for_a_request() {
    let mut received = ReceivedPackets::default();
    observe(&mut received, 0, Eliciting::Midway);
    assert_eq!(received.deadline(), NOW.after_ns(1_000_000));
    assert!(received.acknowledgement_owed() && !received.acknowledgement_is_last());
    assert!(!received.acknowledgement_rides(NOW));
    received.observe(NOW, NOW, 1, false, Eliciting::Midway, true);
    assert!(received.acknowledgement_due(NOW) && received.acknowledgement_rides(NOW));
    observe(&mut received, 2, Eliciting::Midway);
    assert!(
        received.acknowledgement_due(NOW),
        "a later packet withdrew the requested acknowledgement"
    );
}

#[test]
fn the_end_of_an_operation_is_acknowledged_soon_unless_another_begins() {
    let mut received = ReceivedPackets::default();
    observe(&mut received, 0, Eliciting::Midway);
    arrive(&mut received, 1);
    assert_eq!(received.deadline(), NOW.after_ns(25_000));
    assert!(received.acknowledgement_is_last() && received.acknowledgement_rides(NOW));
    observe(&mut received, 2, Eliciting::Midway);
    assert_eq!(received.deadline(), NOW.after_ns(1_000_000));
}

#[test]
fn without_loss_packets_are_acknowledged_after_half_of_the_time_or_when_many_are_pending() {
    let mut received = ReceivedPackets::default();
    received.set_lossless(true);
    arrive(&mut received, 0);
    assert!(received.is_held_back() && received.acknowledgement_owed());
    let half = NOW.after_ns(12_500);
    for (at, is_due) in [(NOW, false), (Instant(half.0 - 1), false), (half, true)] {
        assert_eq!(received.acknowledgement_rides(at), is_due);
        assert_eq!(received.acknowledgement_joins(at), is_due);
    }
    assert!(!received.acknowledgement_due(half), "a frame is sent only for this acknowledgement");
    for number in 1..15 {
        arrive(&mut received, number);
        assert!(!received.acknowledgement_rides(NOW), "after {number}");
    }
    arrive(&mut received, 15);
    assert!(received.acknowledgement_rides(NOW));
    received.write_block(NOW, LinkIndex(0)).unwrap();
    assert!(!received.is_held_back());
    received.observe(NOW, NOW, 16, false, Eliciting::Yes, true);
    assert!(received.acknowledgement_rides(NOW), "the requested acknowledgement is not sent");
}

#[test]
fn many_pending_packets_justify_an_acknowledgement_on_a_data_frame() {
    let mut received = ReceivedPackets::default();
    for number in 0..16 {
        assert!(!received.acknowledgement_rides(NOW), "after {number}");
        observe(&mut received, number, Eliciting::Midway);
    }
    assert!(received.acknowledgement_rides(NOW));
}

//= protocol.md: ack.5
#[test]
fn a_gap_is_reported_at_once_and_once_only() {
    let mut received = ReceivedPackets::default();
    arrive(&mut received, 0);
    arrive(&mut received, 2);
    assert!(received.acknowledgement_due(NOW));
    received.write_block(NOW, LinkIndex(0));
    arrive(&mut received, 3);
    assert!(!received.acknowledgement_due(NOW));
}

#[test]
fn a_gap_found_by_a_non_eliciting_packet_is_reported_with_the_next_eliciting_one() {
    let mut received = ReceivedPackets::default();
    observe(&mut received, 2, Eliciting::No);
    assert_eq!(received.deadline(), Instant::NEVER);
    arrive(&mut received, 3);
    assert!(received.acknowledgement_due(NOW));
}

//= protocol.md: ack.4
#[test]
fn non_eliciting_packets_never_cause_an_acknowledgement() {
    let mut received = ReceivedPackets::default();
    for number in [0, 1, 1, 7, 3, 3] {
        received.observe(NOW, NOW, number, true, Eliciting::No, true);
    }
    assert_eq!(received.deadline(), Instant::NEVER);
    assert!(!received.acknowledgement_owed());
    assert_eq!(received.write_block(NOW, LinkIndex(0)).unwrap().marked, 4);
}

//= protocol.md: receive.4, ack.2, ack.5
#[test]
fn duplicate_marked_and_late_packets_are_acknowledged_at_once() {
    type Case = (&'static str, fn(&mut ReceivedPackets) -> Arrival);
    let cases: [Case; 3] = [
        ("duplicate", |r| arrive(r, 3)),
        ("late", |r| arrive(r, 2)),
        ("mark", |r| r.observe(NOW, NOW, 4, true, Eliciting::Yes, false)),
    ];
    for (name, step) in cases {
        let mut received = ReceivedPackets::default();
        arrive(&mut received, 1);
        arrive(&mut received, 3);
        received.write_block(NOW, LinkIndex(0));
        step(&mut received);
        assert!(received.acknowledgement_due(NOW), "{name}");
    }
}

//= protocol.md: ack.6
#[test]
fn a_requested_acknowledgement_waits_for_an_answer_and_not_for_later_packets() {
    let mut received = ReceivedPackets::default();
    received.observe(NOW, NOW, 0, false, Eliciting::Yes, true);
    assert_eq!(received.deadline(), NOW.after_ns(ANSWER_NS));
    assert!(received.acknowledgement_rides(NOW), "an answer does not carry the acknowledgement");
    observe(&mut received, 1, Eliciting::Midway);
    assert_eq!(received.deadline(), NOW.after_ns(ANSWER_NS));
    assert!(
        received.acknowledgement_is_last(),
        "a thread would sleep before it sends the acknowledgement"
    );
    received.write_block(NOW, LinkIndex(0));
    observe(&mut received, 2, Eliciting::Midway);
    assert!(!received.acknowledgement_is_last());
}

#[test]
fn no_block_is_written_before_the_first_packet() {
    let mut received = ReceivedPackets::default();
    assert_eq!(received.write_block(NOW, LinkIndex(0)), None);
    assert_eq!(
        received.observe(NOW, NOW, 1 << 21, false, Eliciting::Yes, true),
        Arrival::Implausible
    );
    assert_eq!(received.write_block(NOW, LinkIndex(0)), None);
    assert_eq!(received.deadline(), Instant::NEVER);
}

//= protocol.md: receive.4, packet.3
#[test]
fn packet_numbers_below_zero_and_far_ahead_are_refused() {
    let mut received = ReceivedPackets::default();
    assert_eq!(arrive(&mut received, u32::MAX), Arrival::Implausible);
    assert_eq!(arrive(&mut received, JUMP_PACKETS_MAX as u32 + 1), Arrival::Implausible);
    let number = PacketNumber(JUMP_PACKETS_MAX);
    let new = Arrival::New { packet: number, out_of_order: false };
    assert_eq!(arrive(&mut received, number.truncate()), new);
}

//= protocol.md: packet.2
#[test]
fn packet_numbers_continue_past_32_bits() {
    let mut received = ReceivedPackets::default();
    let mut number = 0;
    while number < 1 << 33 {
        let new = Arrival::New { packet: PacketNumber(number), out_of_order: false };
        assert_eq!(arrive(&mut received, number as u32), new);
        number += JUMP_PACKETS_MAX;
    }
    assert_eq!(received.largest(), Some(PacketNumber((1 << 33) - JUMP_PACKETS_MAX)));
}

//= protocol.md: ack.3
#[test]
fn the_delay_counts_from_the_arrival_of_the_largest_and_saturates() {
    let mut received = ReceivedPackets::default();
    received.observe(Instant(5_000), Instant(1_000), 1, false, Eliciting::Yes, false);
    received.observe(Instant(6_000), Instant(6_000), 0, false, Eliciting::Yes, false);
    let block = received.write_block(Instant(7_400), LinkIndex(0)).unwrap();
    assert_eq!(block.delay, AckDelay(100));
    let block = received.write_block(Instant(10_000_000_000), LinkIndex(0)).unwrap();
    assert_eq!(block.delay, AckDelay(u16::MAX));
}

#[test]
fn a_run_longer_than_the_window_survives_a_hole_that_fills_late() {
    let mut received = ReceivedPackets::default();
    for number in (0..5_000).filter(|&number| number != 4_500) {
        arrive(&mut received, number);
    }
    assert_eq!(received.write_block(NOW, LinkIndex(0)).unwrap().run, 499);
    arrive(&mut received, 4_500);
    assert_eq!(received.write_block(NOW, LinkIndex(0)).unwrap().run, 5_000);
}

#[test]
fn an_old_hole_adds_no_bitmap_words() {
    let mut received = ReceivedPackets::default();
    for number in (0..2_000).filter(|&number| number != 1_500) {
        arrive(&mut received, number);
    }
    assert_eq!(received.write_block(NOW, LinkIndex(0)).unwrap().words, 4);
    assert_eq!(received.write_block(NOW, LinkIndex(0)).unwrap().words, 0);
    for number in [2_001, 2_003] {
        arrive(&mut received, number);
    }
    let block = received.write_block(NOW, LinkIndex(0)).unwrap();
    assert_eq!((block.run, block.words, block.bitmap[0]), (1, 4, !0b10));
}

#[test]
fn the_run_is_limited_by_its_field() {
    let mut received = ReceivedPackets::default();
    for number in 2..70_000 {
        arrive(&mut received, number);
    }
    let block = received.write_block(NOW, LinkIndex(0)).unwrap();
    assert_eq!((block.run, block.words), (u16::MAX, 0));
}

proptest! {
    //= protocol.md: receive.8, packet.3, ack.1
    /// Mixes small steps, repeats, losses, late packets, and jumps of about the size of the window.
    #[test]
    fn behaves_like_a_set_of_numbers(
        start in prop_oneof![Just(0_u64), 0..5_000_u64],
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut received = ReceivedPackets::default();
        let mut model = BTreeSet::new();
        let mut next = start;
        for (back, ahead, repeat) in steps {
            for _ in 0..repeat {
                let number = (next + ahead).saturating_sub(back);
                let arrival = arrive(&mut received, number as u32);
                prop_assert_eq!(arrival, expected(&model, number));
                if let Arrival::New { .. } = arrival {
                    model.insert(number);
                }
                next = next.max(number + 1);
            }
            prop_assert_eq!(received.run_start, run_start(&model));
            let block = received.write_block(NOW, LinkIndex(0)).unwrap();
            check_block(&model, &block)?;
        }
    }

    #[test]
    fn any_wire_packet_number_is_handled(numbers in prop::collection::vec(any::<u32>(), 0..200)) {
        let mut received = ReceivedPackets::default();
        for number in numbers {
            let before = received.classify(number);
            prop_assert_eq!(arrive(&mut received, number), before);
            if let Arrival::New { .. } = before {
                prop_assert_eq!(received.classify(number), Arrival::Duplicate);
            }
        }
    }
}

/// Generates three values: how far the first packet is below the next expected number, how far it
/// is above that number, and the number of packets.
fn step() -> impl Strategy<Value = (u64, u64, u8)> {
    prop_oneof![
        10 => (Just(0), Just(0), 1..80_u8),
        3 => (Just(0), 1..4_u64, Just(1)),
        3 => (1..70_u64, Just(0), Just(1)),
        1 => (1..1_100_u64, Just(0), Just(1)),
        1 => (Just(0), 900..2_200_u64, Just(1)),
    ]
}

fn expected(model: &BTreeSet<u64>, number: u64) -> Arrival {
    let packet = PacketNumber(number);
    match model.last() {
        Some(&largest) if number + 1_024 <= largest => Arrival::TooOld,
        Some(_) if model.contains(&number) => Arrival::Duplicate,
        Some(&largest) => Arrival::New { packet, out_of_order: number < largest },
        None => Arrival::New { packet, out_of_order: false },
    }
}

fn run_start(model: &BTreeSet<u64>) -> u64 {
    let mut start = *model.last().unwrap();
    while start > 0 && model.contains(&(start - 1)) {
        start -= 1;
    }
    start
}

fn check_block(model: &BTreeSet<u64>, block: &AckBlock) -> Result<(), TestCaseError> {
    let largest = *model.last().unwrap();
    prop_assert_eq!(u64::from(block.largest), largest);
    prop_assert_eq!(u64::from(block.run), (largest + 1 - run_start(model)).min(65_535));
    prop_assert!(block.words <= 4);
    let gap = largest.checked_sub(u64::from(block.run));
    for bit in 0..256 {
        let number = gap.and_then(|gap| gap.checked_sub(1 + bit));
        let is_in_bitmap = block.bitmap[(bit / 64) as usize] >> (bit % 64) & 1 == 1;
        if bit >= 64 * u64::from(block.words) {
            prop_assert!(!is_in_bitmap);
            // If the block does not report a number, the packet does not exist, has not arrived, or
            // was in several earlier blocks.
            let known = number.is_none_or(|n| !model.contains(&n) || n + 256 <= largest);
            prop_assert!(known, "left out {number:?} of {largest}");
        } else {
            let arrived = number.is_some_and(|number| model.contains(&number));
            let outside = number.is_none_or(|number| number + 1_024 <= largest);
            prop_assert_eq!(is_in_bitmap, arrived && !outside);
        }
    }
    if block.words > 0 {
        prop_assert!(block.bitmap[usize::from(block.words) - 1] != 0);
    }
    Ok(())
}

fn arrive(received: &mut ReceivedPackets, number: u32) -> Arrival {
    observe(received, number, Eliciting::Yes)
}

fn observe(received: &mut ReceivedPackets, number: u32, eliciting: Eliciting) -> Arrival {
    received.observe(NOW, NOW, number, false, eliciting, false)
}

const NOW: Instant = Instant(1_000_000);
