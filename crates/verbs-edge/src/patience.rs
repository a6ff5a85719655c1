//! Timeouts that programs of verbs set by codes. All results are in nanoseconds.

use verbs::{QueuePairAttributes, QueuePairType, Strictness};

/// Returns how long the peer may be silent while this side waits for an answer, in nanoseconds. The
/// result is the timeout times the number of attempts, but not below a minimum.
///
/// A network adapter counts the attempts of each packet. Ethernot detects loss in other ways, so
/// only the total time matters. There is a minimum, because the peer's process may have to wait for
/// a processor, and may start late.
pub(crate) fn silence_ns(
    kind: QueuePairType,
    attributes: &QueuePairAttributes,
    strictness: Strictness,
) -> u64 {
    match (kind, strictness) {
        (QueuePairType::Reliable, Strictness::Strict) => {
            asked_ns(attributes).max(STRICT_SILENCE_NS_MIN)
        }
        _ => attempts_ns(kind, attributes).max(SILENCE_NS_MIN),
    }
}

/// Returns how long work waits for a peer that was not found, in nanoseconds.
///
/// If the peer has rejected a request, the time is shorter. If the peer has not answered, the time
/// is longer, because a host on which many processes start at once answers slowly.
pub(crate) fn search_ns(
    kind: QueuePairType,
    attributes: &QueuePairAttributes,
    is_refused: bool,
) -> u64 {
    attempts_ns(kind, attributes).max(if is_refused { REFUSED_NS_MIN } else { SEARCH_NS_MIN })
}

/// Returns how long work may remain outstanding after the peer has closed the connection, in
/// nanoseconds.
///
/// A network adapter would retransmit the work for a similar time, and most programs end within
/// this time. A peer may close as soon as it has received everything that it waits for. If there
/// are many queue pairs, some of the last messages may still be in flight at that time.
pub(crate) fn parting_ns(attributes: &QueuePairAttributes) -> u64 {
    attempts_ns(QueuePairType::Reliable, attributes).clamp(PARTING_NS_MIN, PARTING_NS_MAX)
}

/// Returns the total time of all attempts, in nanoseconds. If the program sets a timeout, the
/// result is at most [`SILENCE_NS_MAX`]. For unreliable connections, the result is 0, because they
/// have no timeout attribute.
fn attempts_ns(kind: QueuePairType, attributes: &QueuePairAttributes) -> u64 {
    if kind == QueuePairType::Unreliable {
        return 0;
    }
    match asked_ns(attributes) {
        FOR_EVER_NS => FOR_EVER_NS,
        asked_ns => asked_ns.min(SILENCE_NS_MAX),
    }
}

/// Returns the total time of all attempts that the program has set, in nanoseconds.
fn asked_ns(attributes: &QueuePairAttributes) -> u64 {
    if attributes.timeout == 0 {
        return FOR_EVER_NS;
    }
    let attempt_ns = TIMEOUT_UNIT_NS << attributes.timeout.min(31);
    let attempts = u64::from(attributes.retries.min(7)) + 1;
    attempt_ns * attempts
}

/// Returns how long work waits for a receive of the peer, in nanoseconds; `None` means without
/// limit. `peer_timer` is the peer's RNR timer code. A network adapter waits for the time of this
/// code before each attempt except the first.
pub(crate) fn not_ready_ns(
    attributes: &QueuePairAttributes,
    peer_timer: u8,
    strictness: Strictness,
) -> Option<u64> {
    if attributes.not_ready_retries >= 7 {
        return None;
    }
    let pause_ns = timer_ns(peer_timer);
    let more = u64::from(strictness == Strictness::Lenient);
    let pauses = u64::from(attributes.not_ready_retries) + more;
    Some((pause_ns * pauses).max(NOT_READY_NS_MIN))
}

/// Returns the time of an RNR timer code in nanoseconds (IBA volume 1, table 45).
fn timer_ns(code: u8) -> u64 {
    let hundredths_ms: u64 = match code & 31 {
        0 => 65_536,
        code @ 1..=4 => u64::from(code),
        // Each code stands for 2^k or 3 × 2^(k-1) hundredths of a millisecond.
        code => {
            let step = u32::from(code - 3) / 2;
            if code % 2 == 1 { 3 << step } else { 4 << step }
        }
    };
    hundredths_ms * 10_000
}

/// Unit of timeout codes: 4.096 µs.
const TIMEOUT_UNIT_NS: u64 = 4096;

/// Minimum silence after which a peer counts as unreachable, in nanoseconds. A peer may be silent
/// for a shorter time because some frames were lost, or because its process waits for a busy
/// processor.
const SILENCE_NS_MIN: u64 = 5_000_000_000;

/// Minimum silence on a strict device, in nanoseconds. A peer may be silent for a shorter time
/// because its process waits for a processor.
const STRICT_SILENCE_NS_MIN: u64 = 200_000_000;

/// Minimum time of a search for a peer that does not answer, in nanoseconds. If 64 processes with
/// 64 queue pairs each start on two processors, connecting takes some seconds.
const SEARCH_NS_MIN: u64 = 15_000_000_000;

/// Minimum time of a search after a rejected request, in nanoseconds. The peer's host may reject
/// requests until the program there has created the queue pair.
const REFUSED_NS_MIN: u64 = 1_000_000_000;

/// Minimum time for which work may remain outstanding after the peer has closed the connection, in
/// nanoseconds. The minimum is longer than the time for which a process usually waits for a
/// processor.
const PARTING_NS_MIN: u64 = 200_000_000;

/// Maximum time for which work may remain outstanding after the peer has closed the connection, in
/// nanoseconds. With this limit, a program gets the error within two seconds.
const PARTING_NS_MAX: u64 = 1_000_000_000;

/// Maximum silence on a lenient device, in nanoseconds. Some programs set longer times, up to 19
/// hours, but only to test whether the device accepts them.
const SILENCE_NS_MAX: u64 = 60_000_000_000;

/// Time of all attempts if the program sets no timeout: a year.
const FOR_EVER_NS: u64 = 365 * 86_400 * 1_000_000_000;

/// Minimum time for which work waits for a receive of the peer, in nanoseconds. The minimum is
/// longer than the time for which the peer's process usually waits for a processor.
const NOT_READY_NS_MIN: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const RELIABLE: QueuePairType = QueuePairType::Reliable;
    const LENIENT: Strictness = Strictness::Lenient;

    #[test]
    fn a_strict_device_waits_for_the_requested_time() {
        let attributes =
            |timeout, retries| QueuePairAttributes { timeout, retries, ..Default::default() };
        let strict_ns = |timeout, retries| {
            silence_ns(RELIABLE, &attributes(timeout, retries), Strictness::Strict)
        };
        assert_eq!(strict_ns(14, 7), 8 * (4096 << 14));
        assert_eq!(strict_ns(31, 7), 8 * (4096 << 31));
        assert_eq!(strict_ns(0, 7), FOR_EVER_NS);
        assert_eq!(strict_ns(1, 0), STRICT_SILENCE_NS_MIN);
        let unreliable =
            silence_ns(QueuePairType::Unreliable, &attributes(1, 0), Strictness::Strict);
        assert_eq!(unreliable, SILENCE_NS_MIN);
        let pauses_ns = |not_ready_retries, strictness| {
            let attributes = QueuePairAttributes { not_ready_retries, ..Default::default() };
            not_ready_ns(&attributes, 0, strictness)
        };
        assert_eq!(pauses_ns(1, Strictness::Strict), Some(655_360_000));
        assert_eq!(pauses_ns(1, LENIENT), Some(2 * 655_360_000));
        assert_eq!(pauses_ns(0, Strictness::Strict), Some(NOT_READY_NS_MIN));
        assert_eq!(pauses_ns(7, Strictness::Strict), None);
    }

    #[test]
    fn timer_codes_stand_for_the_times_of_the_standard() {
        // Times in hundredths of a millisecond, for the codes from 1 upwards.
        let table = [
            1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
        ];
        assert_eq!(timer_ns(0), 655_360_000);
        for (code, hundredths) in (1..).zip(table) {
            assert_eq!(timer_ns(code), hundredths * 10_000, "code {code}");
        }
    }

    #[test]
    fn the_silence_budget_covers_all_retries_within_bounds() {
        let attributes =
            |timeout, retries| QueuePairAttributes { timeout, retries, ..Default::default() };
        assert_eq!(silence_ns(RELIABLE, &attributes(20, 1), LENIENT), 2 * (4096 << 20));
        assert_eq!(silence_ns(RELIABLE, &attributes(14, 0), LENIENT), SILENCE_NS_MIN);
        assert_eq!(silence_ns(RELIABLE, &attributes(31, 7), LENIENT), SILENCE_NS_MAX);
        assert_eq!(silence_ns(RELIABLE, &attributes(0, 7), LENIENT), FOR_EVER_NS);
        assert_eq!(silence_ns(RELIABLE, &attributes(255, 255), LENIENT), SILENCE_NS_MAX);
        assert_eq!(
            silence_ns(QueuePairType::Unreliable, &attributes(0, 0), LENIENT),
            SILENCE_NS_MIN
        );
        for (refused, least) in [(true, REFUSED_NS_MIN), (false, SEARCH_NS_MIN)] {
            assert_eq!(search_ns(RELIABLE, &attributes(1, 1), refused), least);
            assert_eq!(search_ns(RELIABLE, &attributes(31, 1), refused), SILENCE_NS_MAX);
        }
    }

    #[test]
    fn work_abandoned_by_a_peer_fails_after_all_retries_within_bounds() {
        let attributes =
            |timeout, retries| QueuePairAttributes { timeout, retries, ..Default::default() };
        assert_eq!(parting_ns(&attributes(14, 7)), 8 * (4096 << 14));
        assert_eq!(parting_ns(&attributes(1, 0)), PARTING_NS_MIN);
        assert_eq!(parting_ns(&attributes(0, 0)), PARTING_NS_MAX);
    }

    #[test]
    fn seven_receiver_not_ready_retries_mean_no_limit() {
        let attributes =
            |not_ready_retries| QueuePairAttributes { not_ready_retries, ..Default::default() };
        assert_eq!(not_ready_ns(&attributes(7), 12, LENIENT), None);
        assert_eq!(not_ready_ns(&attributes(6), 0, LENIENT), Some(7 * 655_360_000));
        assert_eq!(not_ready_ns(&attributes(0), 1, LENIENT), Some(NOT_READY_NS_MIN));
    }
}
