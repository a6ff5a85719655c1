//! Faults that were found by reading the code, and that were then corrected. The tests plant each
//! fault again on purpose. The run of at least one seed must then fail.

use super::bent::{Bend, Bent};
use super::plain::{Bug, PlainEngine};
use super::{Options, Report, run_with};
use crate::edge_host::EdgeHost;
use crate::host::{HostEngine, Shape, Tuning};

const OPTIONS: Options = Options {
    twice: false,
    tail_entries: 40,
    compare_interval_turns: 16,
    classes: true,
    queue_pairs: false,
    load: None,
};

/// Maximum number of seeds that are run to find a fault.
const SEEDS_MAX: u64 = 2_000;

#[test]
fn unanswered_control_frames_that_pile_up_are_found() {
    plain(Bug::RepeatsEachTurn, "unanswered questions");
}

#[test]
fn data_for_an_unvalidated_address_is_found() {
    plain(Bug::FollowsAnybody, "bytes to");
}

#[test]
fn operations_reordered_at_the_hand_over_are_found() {
    edge(Bend::ReordersPosts, "completion");
}

#[test]
fn a_driver_full_for_one_peer_that_blocks_others_is_found() {
    plain(Bug::StopsAtFullDriver, "while others fail");
}

#[test]
fn one_peer_that_occupies_all_records_is_found() {
    plain(Bug::HasOneRecord, "while others fail");
}

#[test]
fn operation_records_without_shares_are_found() {
    edge(Bend::LendsAllRecords, "while others fail");
}

#[test]
fn reused_packet_numbers_are_found() {
    let make = |_, tuning: Tuning| {
        let shape = Shape { forgets_doubts: true, doubts_one_in: 10, ..tuning.shape };
        EdgeHost::new(&Tuning { shape, ..tuning })
    };
    find("numbers are used again", "no convergence", &OPTIONS, &make);
}

#[test]
fn a_failure_report_accepted_without_a_probe_is_found() {
    plain(Bug::BelievesNews, "although nothing ended it");
}

#[test]
fn an_accepted_reset_of_another_epoch_is_found() {
    edge(Bend::BelievesResets, "PeerRestarted");
}

#[test]
fn an_undetected_reduction_of_the_path_mtu_is_found() {
    plain(Bug::SendsLargeFrames, "no convergence|Unreachable");
}

#[test]
fn a_listener_blocked_by_a_peer_that_never_confirms_is_found() {
    edge(Bend::HoldsListener, "a connection");
}

#[test]
fn an_accepted_region_of_another_domain_is_found() {
    edge(Bend::IgnoresDomains, "of the target is|operation Write of 0 bytes");
}

#[test]
fn a_wrong_failure_cause_is_found() {
    edge(Bend::ConfusesCauses, "which nothing caused");
    edge(Bend::ConfusesFaults, "nothing denied");
}

#[test]
fn a_leaked_record_is_found() {
    edge(Bend::LeaksAtClose, "although everything is closed");
}

#[test]
fn an_unrequested_timer_is_found() {
    edge(Bend::ForgetsTimers, "no convergence");
}

#[test]
fn a_delivered_message_that_fails_when_its_receiver_closes_is_found() {
    pairs(Bend::ForgetsDeliveries, "failed as ClosedByPeer");
}

#[test]
fn work_flushed_before_a_denied_operation_is_found() {
    pairs(Bend::FlushesBefore, "failed as AccessDenied|failed as EndedByPeer");
}

#[test]
fn an_immediate_that_consumes_no_receive_is_found() {
    pairs(Bend::NotifiesOfWrites, "is not the next one");
}

#[test]
fn lost_shared_receives_are_found() {
    pairs(Bend::LosesReceives, "no convergence");
}

#[test]
fn misplaced_sges_are_found() {
    pairs(Bend::MixesPieces, "other content");
}

#[test]
fn an_sge_that_is_not_gathered_is_found() {
    pairs(Bend::SkipsPieces, "other content|of the target is");
}

#[test]
fn an_invalidated_window_that_is_still_open_is_found() {
    pairs(Bend::KeepsWindows, "succeeded although|changed after");
}

#[test]
fn a_former_window_key_that_is_still_valid_is_found() {
    pairs(Bend::KeepsFormerKeys, "of the target is|operation Write of 0 bytes|changed after");
}

#[test]
fn a_message_that_invalidates_no_key_is_found() {
    pairs(Bend::ForgetsInvalidations, "is not the next one");
}

#[test]
fn an_open_window_of_another_connection_is_found() {
    pairs(Bend::OpensToAll, "of the target is|operation Write of 0 bytes|changed after");
}

#[test]
fn deregistered_memory_that_is_still_open_is_found() {
    pairs(Bend::KeepsRegions, "succeeded although|changed after");
}

#[test]
fn an_accepted_datagram_with_a_wrong_key_is_found() {
    pairs(Bend::IgnoresKeys, "wrong number or key");
}

#[test]
fn a_duplicated_datagram_is_found() {
    pairs(Bend::RepeatsDatagrams, "for the second time");
}

//= protocol.md: patch.2
#[test]
fn a_last_word_of_a_patch_that_is_not_placed_is_found() {
    edge(Bend::SkipsLastWords, "of the target is");
}

//= protocol.md: patch.7
#[test]
fn words_of_a_patch_that_are_placed_again_are_found() {
    edge(Bend::RepeatsPatches, "of the target is");
}

//= protocol.md: patch.5
#[test]
fn a_patch_without_the_right_to_write_is_found() {
    edge(Bend::PatchesUnderAnyKey, "of the target is|changed after");
}

//= protocol.md: operation.2
#[test]
fn an_area_that_moves_with_the_offset_is_found() {
    edge(Bend::MovesPatches, "of the target is|although nothing");
}

//= protocol.md: patch.2
#[test]
fn bits_that_stand_for_other_words_are_found() {
    edge(Bend::MirrorsBitmaps, "of the target is");
    edge(Bend::ExchangesWords, "of the target is");
}

//= protocol.md: patch.6
#[test]
fn a_word_that_no_bit_names_and_that_changes_is_found() {
    edge(Bend::FillsGaps, "of the target is");
}

//= protocol.md: fence.1
#[test]
fn a_patch_that_passes_its_fence_is_found() {
    edge(Bend::IgnoresPatchFences, "of the target is");
}

//= protocol.md: notify.1
#[test]
fn an_altered_immediate_of_a_patch_is_found() {
    edge(Bend::AltersPatchImmediates, "is not the next one");
}

//= protocol.md: answer.3
#[test]
fn a_swap_that_adds_is_found() {
    edge(Bend::AddsInSwaps, "returned");
}

fn pairs(bend: Bend, expected: &str) {
    let make = |_, tuning: Tuning| Bent::new(EdgeHost::new(&tuning), bend);
    let options = Options { queue_pairs: true, ..OPTIONS };
    find(&format!("{bend:?}"), expected, &options, &make);
}

fn plain(bug: Bug, expected: &str) {
    find(&format!("{bug:?}"), expected, &OPTIONS, &|_, tuning| PlainEngine::new(&tuning, bug));
}

fn edge(bend: Bend, expected: &str) {
    let make = |_, tuning: Tuning| Bent::new(EdgeHost::new(&tuning), bend);
    find(&format!("{bend:?}"), expected, &OPTIONS, &make);
}

/// Runs seeds until one fails with one of these texts, and prints that seed.
fn find<E: HostEngine>(
    name: &str,
    expected: &str,
    options: &Options,
    make: &super::MakeEngine<'_, E>,
) {
    let is_found = |report: &Report| {
        let failure = report.failure.as_ref();
        let text = failure.map(|failure| failure.violation.to_string());
        text.is_some_and(|text| expected.split('|').any(|one| text.contains(one)))
    };
    let mut reports = (0..SEEDS_MAX).map(|seed| run_with(seed, options, make));
    let report = reports.find(is_found);
    let report = report.unwrap_or_else(|| panic!("{name} is not found in {SEEDS_MAX} seeds"));
    let violation = report.failure.map(|failure| failure.violation.to_string());
    println!("{name}: seed {}, {:?}: {violation:?}", report.seed, report.classes);
}
