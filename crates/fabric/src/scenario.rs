//! Measures transfers between two hosts on simple links. Tables of the results show the effect of a
//! change in the protocol.

use core::fmt::Write as _;

use delivery::{Instant, LinkId, SettingError};
use thiserror::Error;

use crate::channel::{Faults, LinkModel};
use crate::edge_host::EdgeHost;
use crate::host::{
    Action, Congestion, ConnectionHandle, Flags, HostEngine, HostEvent, Operation, Refusal, Region,
    Scheduling, Shape, Tuning,
};
use crate::network::{PortId, Segment, port_address};
use crate::torture::MakeEngine;
use crate::world::{Application, Livelock, World};

/// A write from one host to another.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// The links; each model applies to both directions.
    pub links: &'a [LinkModel],
    /// Probability that a frame is lost, in each direction, in parts per million.
    pub loss_ppm: u32,
    /// Size of the measured write, in bytes.
    pub length_bytes: u32,
    /// Size of an earlier write, in bytes; 0 for no such write. From this write, the engine learns
    /// the rates of its links.
    pub warm_up_bytes: u32,
    /// Link scheduler of both engines.
    pub scheduling: Scheduling,
    /// Congestion control of both engines.
    pub congestion: Congestion,
    /// Seed of the losses and of the engines.
    pub seed: u64,
}

impl<'a> Transfer<'a> {
    /// Returns a write of `length_bytes`, after a warm-up of the same size. There are no losses;
    /// all other settings have defaults.
    pub const fn new(links: &'a [LinkModel], length_bytes: u32) -> Self {
        Self {
            links,
            loss_ppm: 0,
            length_bytes,
            warm_up_bytes: length_bytes,
            scheduling: Scheduling::EarliestDelivery,
            congestion: Congestion::Aimd,
            seed: 1,
        }
    }
}

/// The results of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Time from posting the write to its completion, in nanoseconds.
    pub duration_ns: u64,
    /// Number of frames that the writing host sent from the post of the write to its completion.
    pub frames: u64,
    /// Number of frames that the other host sent from the post of the write to its completion. All
    /// of them are acknowledgements.
    pub answers: u64,
    /// Number of frames that the other host received after a frame that was sent later.
    pub overtaken: u64,
    /// Smallest possible number of frames for the bytes of the write: frames of the maximum size,
    /// with headers of 32 bytes.
    pub frames_min: u64,
}

impl Outcome {
    /// Returns the payload rate, in bits per second.
    pub fn goodput(&self, length_bytes: u32) -> f64 {
        f64::from(length_bytes) * 8e9 / self.duration_ns.max(1) as f64
    }

    /// Returns the share of frames that arrived out of order, in percent.
    pub fn out_of_order_percent(&self) -> f64 {
        100.0 * self.overtaken as f64 / self.frames.max(1) as f64
    }

    /// Returns how many more frames the writing host sent than the smallest possible number, in
    /// percent of that number.
    pub fn extra_percent(&self) -> f64 {
        let extra = self.frames.saturating_sub(self.frames_min);
        100.0 * extra as f64 / self.frames_min.max(1) as f64
    }

    /// Returns the number of acknowledgements, in percent of the smallest possible number of
    /// frames.
    pub fn answer_percent(&self) -> f64 {
        100.0 * self.answers as f64 / self.frames_min.max(1) as f64
    }
}

/// Why a transfer has no results.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TransferError {
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The engine refused the connection or the write.
    #[error("the engine refused the transfer: {0}")]
    Refused(Refusal),
    /// The connection or the write failed, or did not complete within the time limit.
    #[error("{bytes} bytes were not written within {limit_ns} ns")]
    Unfinished {
        /// Size of the write in bytes.
        bytes: u32,
        /// The time limit in nanoseconds.
        limit_ns: u64,
    },
    /// The bytes that arrived differ from the bytes written.
    #[error("the bytes that arrived are not those that were sent")]
    Corrupted,
    /// The engines never stopped reacting to each other at the same virtual time.
    #[error("host {} never becomes quiet", .0.host)]
    Stuck(Livelock),
}

/// Checks that each link has a rate.
pub(crate) fn check_links(links: &[LinkModel]) -> Result<(), SettingError> {
    links.iter().try_for_each(LinkModel::check)
}

/// Runs a transfer in virtual time with engines created by `make`.
///
/// # Errors
/// Returns [`TransferError`]; each variant names one cause.
pub fn transfer<E: HostEngine>(
    transfer: &Transfer<'_>,
    make: &MakeEngine<'_, E>,
) -> Result<Outcome, TransferError> {
    check_links(transfer.links)?;
    let mut world = World::new(transfer.seed, 0);
    let segments: Vec<usize> =
        transfer.links.iter().map(|_| world.network.add_segment(Segment::Direct)).collect();
    for host in 0..2 {
        let mut ports = Vec::new();
        for (link, model) in transfer.links.iter().enumerate() {
            let address = port_address(host as u8, link as u8);
            let port = world.network.add_port(segments[link], address, *model);
            world
                .network
                .set_faults(port, Faults { loss_ppm: transfer.loss_ppm, ..Faults::default() });
            ports.push(port);
        }
        world.add_host(make(host, tuning(transfer, host)), &ports);
        world.engine_mut(host).listen(Instant(0));
    }
    let paths: Vec<_> =
        (0..transfer.links.len() as u8).map(|link| (LinkId(link), port_address(1, link))).collect();
    let bytes = transfer.length_bytes.max(transfer.warm_up_bytes);
    let (source, target) =
        (world.engine_mut(0).register(bytes), world.engine_mut(1).register(bytes));
    let content: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8 + 1).collect();
    world.engine_mut(0).write_memory(source, 0, &content);
    let connection = world.engine_mut(0).connect(Instant(0), &paths, &[]);
    let connection = connection.map_err(TransferError::Refused)?;
    let mut state = Progress { connection, ready: [false; 2], finished: None };
    advance(&mut world, &mut state, transfer, |state| state.ready == [true; 2])?;
    if transfer.warm_up_bytes > 0 {
        write(&mut world, &mut state, transfer, source, target, transfer.warm_up_bytes)?;
    }
    let before = Sent::of(&world, transfer.links.len());
    let began = world.now();
    let ended = write(&mut world, &mut state, transfer, source, target, transfer.length_bytes)?;
    let after = Sent::of(&world, transfer.links.len());
    let mut found = vec![0; transfer.length_bytes as usize];
    world.engine(1).read_memory(target, 0, &mut found);
    if found != content[..found.len()] {
        return Err(TransferError::Corrupted);
    }
    let largest = transfer.links.iter().map(|model| model.frame_bytes_max).max().unwrap_or(0);
    let payload = u64::from(largest.saturating_sub(HEADER_BYTES)).max(1);
    Ok(Outcome {
        duration_ns: ended.since_ns(began),
        frames: after.frames - before.frames,
        answers: after.answers - before.answers,
        overtaken: after.overtaken - before.overtaken,
        frames_min: u64::from(transfer.length_bytes).div_ceil(payload),
    })
}

/// A named transfer and its results.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name of the transfer.
    pub name: &'static str,
    /// Size of the write in bytes.
    pub length_bytes: u32,
    /// The results.
    pub outcome: Outcome,
}

/// Runs named transfers.
///
/// # Errors
/// Returns [`TransferError`]; each variant names one cause.
pub fn measure<E: HostEngine>(
    rows: &[(&'static str, Transfer<'_>)],
    make: &MakeEngine<'_, E>,
) -> Result<Vec<Measured>, TransferError> {
    let row = |&(name, row): &(&'static str, Transfer<'_>)| {
        let outcome = transfer(&row, make)?;
        Ok(Measured { name, length_bytes: row.length_bytes, outcome })
    };
    rows.iter().map(row).collect()
}

/// Runs the transfers in [`SCENARIOS`] with the real engine.
///
/// # Errors
/// Returns [`TransferError`]; each variant names one cause.
pub fn run() -> Result<Vec<Measured>, TransferError> {
    measure(&SCENARIOS, &|_, tuning| EdgeHost::new(&tuning))
}

/// Formats a table of transfers, with one line for each.
pub fn table(rows: &[Measured]) -> String {
    let mut text = String::from(
        "scenario                                  |  goodput Mb/s |  time us | out of order % | extra % | acks %\n",
    );
    for Measured { name, length_bytes, outcome } in rows {
        let goodput = outcome.goodput(*length_bytes) / 1e6;
        let time_us = outcome.duration_ns.div_ceil(1_000);
        let _ = writeln!(
            text,
            "{name:41} | {goodput:13.0} | {time_us:8} | {:14.0} | {:7.1} | {:6.0}",
            outcome.out_of_order_percent(),
            outcome.extra_percent(),
            outcome.answer_percent(),
        );
    }
    text
}

/// The transfers that `ethernot sim scenario` measures. Their names are the keys in the command's
/// result.
///
/// The engine sends one frame for a write of 8 bytes, and three frames for a write of 4 KiB. The
/// tables show one more frame, which is an acknowledgement. The peer reports the state of the
/// second link shortly after the connection is established. The writer acknowledges this report 25
/// µs after the report arrives, which is during the measured write.
pub const SCENARIOS: [(&str, Transfer<'static>); 15] = {
    const FAST: [LinkModel; 1] = [UNEQUAL_LINKS[0]];
    const EQUAL: [LinkModel; 2] = [UNEQUAL_LINKS[0]; 2];
    const FOUR: [LinkModel; 4] = [LinkModel::ethernet(10_000_000_000, 10_000); 4];
    const fn lossy(links: &'static [LinkModel], loss_ppm: u32) -> Transfer<'static> {
        Transfer { loss_ppm, ..Transfer::new(links, LOSS_BYTES) }
    }
    const fn in_turn(links: &'static [LinkModel]) -> Transfer<'static> {
        Transfer { scheduling: Scheduling::RoundRobin, ..Transfer::new(links, MEGABYTE) }
    }
    [
        ("1 MB, 1 Gb/s", Transfer::new(&FAST, MEGABYTE)),
        ("1 MB, 1 Gb/s + 100 Mb/s", Transfer::new(&UNEQUAL_LINKS, MEGABYTE)),
        ("1 MB, 1 Gb/s + 100 Mb/s, round robin", in_turn(&UNEQUAL_LINKS)),
        ("1 MB, 2 x 1 Gb/s", Transfer::new(&EQUAL, MEGABYTE)),
        ("1 MB, 2 x 1 Gb/s, round robin", in_turn(&EQUAL)),
        ("16 MB, 4 x 10 Gb/s", Transfer::new(&FOUR, 16 << 20)),
        ("8 B, 1 Gb/s + 100 Mb/s", Transfer::new(&UNEQUAL_LINKS, 8)),
        ("4 KiB, 1 Gb/s + 100 Mb/s", Transfer::new(&UNEQUAL_LINKS, 4 << 10)),
        ("64 KiB, 1 Gb/s + 100 Mb/s", Transfer::new(&UNEQUAL_LINKS, 64 << 10)),
        ("16 MB, 1 Gb/s", lossy(&LOSSY_LINK, 0)),
        ("16 MB, 1 Gb/s, 0.1 % loss", lossy(&LOSSY_LINK, 1_000)),
        ("16 MB, 1 Gb/s, 1 % loss", lossy(&LOSSY_LINK, 10_000)),
        ("16 MB, 1 Gb/s, 5 % loss", lossy(&LOSSY_LINK, 50_000)),
        ("16 MB, 2 x 1 Gb/s, 1 % loss", lossy(&EQUAL, 10_000)),
        ("16 MB, 1 Gb/s + 100 Mb/s, 1 % loss", lossy(&UNEQUAL_LINKS, 10_000)),
    ]
};

/// One megabyte in bytes, in the decimal sense.
const MEGABYTE: u32 = 1_000_000;

/// Size of a transfer with losses, in bytes. The transfer has some thousand frames, and at least
/// some tens of them are lost.
const LOSS_BYTES: u32 = 16 << 20;

/// The two links on which acceptance is measured: Ethernet of 1 Gb/s and of 100 Mb/s, each with a
/// delay of 20 µs.
pub const UNEQUAL_LINKS: [LinkModel; 2] =
    [LinkModel::ethernet(1_000_000_000, 20_000), LinkModel::ethernet(100_000_000, 20_000)];

/// The link on which the cost of losses is measured: Ethernet of 1 Gb/s with a delay of 50 µs.
pub const LOSSY_LINK: [LinkModel; 1] = [LinkModel::ethernet(1_000_000_000, 50_000)];

/// Posts a write and runs until it has completed. Returns the time of its completion.
fn write<E: HostEngine>(
    world: &mut World<E>,
    state: &mut Progress,
    transfer: &Transfer<'_>,
    source: Region,
    target: Region,
    length_bytes: u32,
) -> Result<Instant, TransferError> {
    let operation = Operation {
        action: Action::Write,
        local: source,
        local_offset: 0,
        length_bytes,
        key: target.key,
        address: target.address,
        immediate: None,
        flags: Flags { signalled: true, ..Flags::default() },
        context: 1,
    };
    let now = world.now();
    state.finished = None;
    world.engine_mut(0).post(now, state.connection, &operation).map_err(TransferError::Refused)?;
    advance(world, state, transfer, |state| state.finished.is_some())?;
    let ended = state.finished.and_then(|(time, success)| success.then_some(time));
    ended.ok_or(TransferError::Unfinished { bytes: length_bytes, limit_ns: LIMIT_NS })
}

fn advance<E: HostEngine>(
    world: &mut World<E>,
    state: &mut Progress,
    transfer: &Transfer<'_>,
    done: impl Fn(&Progress) -> bool,
) -> Result<(), TransferError> {
    let limit = world.now().after_ns(LIMIT_NS);
    while !done(state) {
        if world.now() >= limit {
            let bytes = transfer.length_bytes;
            return Err(TransferError::Unfinished { bytes, limit_ns: LIMIT_NS });
        }
        let slice = world.now().after_ns(SLICE_NS);
        world.run_until(slice, state).map_err(TransferError::Stuck)?;
    }
    Ok(())
}

fn tuning(transfer: &Transfer<'_>, host: usize) -> Tuning {
    let mut entropy = [0; 32];
    crate::random::Random::stream(transfer.seed, host as u64).fill(&mut entropy);
    Tuning {
        entropy,
        congestion: transfer.congestion,
        scheduling: transfer.scheduling,
        operation_window: 256,
        order_pool_bytes: 256 << 10,
        read_depth: 16,
        ack_delay_max_ns: 25_000,
        dead_peer_ns: LIMIT_NS,
        pool_divisor: 1,
        shape: Shape::default(),
    }
}

/// The application of both hosts.
struct Progress {
    connection: ConnectionHandle,
    ready: [bool; 2],
    /// Time when the write completed, and whether it succeeded; `None` before that.
    finished: Option<(Instant, bool)>,
}

impl<E: HostEngine> Application<E> for Progress {
    fn on_wake(&mut self, _world: &mut World<E>, _token: u64) {}

    fn on_event(&mut self, world: &mut World<E>, host: usize, event: HostEvent) {
        let now = world.now();
        match event {
            HostEvent::Requested { request, .. } => {
                // Accepting fails if the request no longer exists; the peer then requests again.
                let _ = world.engine_mut(host).accept(now, request);
            }
            HostEvent::Established(_) => self.ready[host] = true,
            HostEvent::Closed(..) => self.finished = Some((now, false)),
        }
    }

    fn on_turn(&mut self, world: &mut World<E>, host: usize) {
        if host == 0
            && self.finished.is_none()
            && self.ready[0]
            && let Some(completion) = world.poll_completion(0, self.connection)
        {
            self.finished = Some((world.now(), completion.success));
        }
    }
}

/// Counters of both hosts at one time.
struct Sent {
    frames: u64,
    answers: u64,
    overtaken: u64,
}

impl Sent {
    fn of<E: HostEngine>(world: &World<E>, links: usize) -> Self {
        let sent = |host: usize| {
            (0..links).map(|link| world.network.sent(PortId((host * links + link) as u16))).sum()
        };
        Self { frames: sent(0), answers: sent(1), overtaken: world.overtaken(1) }
    }
}

/// Header length of a frame of a large write, in bytes. The first and the last frame have longer
/// headers.
const HEADER_BYTES: u16 = 32;

/// Time limit of a transfer, in virtual nanoseconds.
const LIMIT_NS: u64 = 30_000_000_000;

/// Interval at which the progress of a transfer is checked, in nanoseconds.
const SLICE_NS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::plain::{Bug, PlainEngine};

    #[test]
    fn lossless_transfer_is_counted_exactly() {
        let outcome = transfer(&Transfer::new(&LOSSY_LINK, 100_000), &make).expect("it finishes");
        assert_eq!(outcome.frames_min, 70);
        // The engine cuts the write into fragments of 1000 bytes, and retransmits none.
        assert_eq!((outcome.frames, outcome.overtaken), (100, 0));
        assert!(outcome.duration_ns > 100_000 * 8 + 100_000, "{outcome:?}");
        assert!(outcome.goodput(100_000) < 1e9);
    }

    #[test]
    fn loss_costs_time_and_frames() {
        let lossless = Transfer::new(&LOSSY_LINK, 1 << 20);
        let lossy = Transfer { loss_ppm: 10_000, ..lossless };
        let (without, with) = (
            transfer(&lossless, &make).expect("finishes"),
            transfer(&lossy, &make).expect("finishes"),
        );
        assert!(with.duration_ns > without.duration_ns);
        assert!(with.extra_percent() > without.extra_percent());
        let rows = measure(&[("1 Gb/s", lossless), ("1 Gb/s, 1 % loss", lossy)], &make);
        assert_eq!(table(&rows.expect("both finish")).lines().count(), 3);
    }

    #[test]
    fn transfer_without_a_path_fails() {
        let transfer_of = Transfer { loss_ppm: 1_000_000, ..Transfer::new(&LOSSY_LINK, 1_000) };
        assert!(matches!(transfer(&transfer_of, &make), Err(TransferError::Unfinished { .. })));
    }

    #[test]
    fn a_link_without_a_rate_is_refused() {
        let silent = [LinkModel::ethernet(0, 0)];
        let error = transfer(&Transfer::new(&silent, 1_000), &make).unwrap_err();
        let message = "the setting `rate` is 0; 1 to 18446744073709551615 would do";
        assert_eq!(error.to_string(), message);
        let error = crate::stream::run(&crate::stream::Stream::new(&silent)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }

    fn make(_host: usize, tuning: Tuning) -> PlainEngine {
        PlainEngine::new(&tuning, Bug::None)
    }
}
