//! Cuts links under transfers.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use super::results::{Cut, FORMAT, FailoverResults, Worst};
use super::stream::{Series, Side, StreamSpec};
use crate::clock::{self, Stopwatch, pause};
use crate::cpu;
use crate::machine::Machine;
use crate::multiedge::run::{LinkKind, Observer, RunError};
use crate::namespaces::{self, NamespaceError};
use crate::process::{ChildProcess, ChildSpec, Line, Role};
use crate::testbed::{LinkShape, Testbed, Towards};

/// What the user wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program itself, to be started as source and target.
    pub program: PathBuf,
    /// How frames are sent.
    pub link: LinkKind,
    /// MTU of the links, in bytes.
    pub mtu: u32,
    /// What to cut.
    pub cuts: Vec<CutKind>,
    /// Time before the cut; the link is away for twice and back for three times as long.
    pub quarter: Duration,
    /// Restrict source and target to one CPU each.
    pub pinning: bool,
}

/// What is cut of the first link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutKind {
    /// Frames of both directions, silently.
    Both,
    /// Frames towards the target, silently.
    ToTarget,
    /// Frames towards the source, silently.
    ToSource,
    /// The carrier at both ends.
    Carrier,
}

impl CutKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Both, Self::ToTarget, Self::ToSource, Self::Carrier];

    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::ToTarget => "to-target",
            Self::ToSource => "to-source",
            Self::Carrier => "carrier",
        }
    }

    fn apply(self, testbed: &Testbed, is_cut: bool) -> Result<(), NamespaceError> {
        let percent = if is_cut { 100.0 } else { 0.0 };
        // The source is at the client.
        match self {
            Self::Both => {
                testbed.set_loss(CUT_LINK, Towards::Server, percent)?;
                testbed.set_loss(CUT_LINK, Towards::Client, percent)
            }
            Self::ToTarget => testbed.set_loss(CUT_LINK, Towards::Server, percent),
            Self::ToSource => testbed.set_loss(CUT_LINK, Towards::Client, percent),
            Self::Carrier => testbed.set_carrier(CUT_LINK, !is_cut),
        }
    }
}

/// Cuts what `options` ask for, each in a transfer of its own.
pub fn run(options: &Options, observer: &mut dyn Observer) -> Result<FailoverResults, RunError> {
    if !namespaces::are_possible() {
        return Err(RunError::NotRoot);
    }
    let unix_seconds = clock::unix_seconds();
    for name in namespaces::remove_leftovers() {
        observer.on_note(&format!("removed {name}, left behind by a run that was killed"));
    }
    observer.on_start(options.cuts.len() as u64);
    let shape = LinkShape { has_trunk: true, ..LinkShape::of_rate(BITS_PER_SECOND) };
    let mut cuts = Vec::new();
    for &kind in &options.cuts {
        observer.on_point(&format!("cut {}", kind.name()));
        let testbed = Testbed::create(&[shape, shape], options.mtu)?;
        cuts.push(match cut(options, &testbed, kind) {
            Ok((cut_ms, restored_ms, series)) => {
                Cut::judge(kind.name(), cut_ms, restored_ms, series)
            }
            Err(error) => Cut::failed(kind.name(), error.to_string()),
        });
    }
    Ok(FailoverResults {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        machine: Machine::this(),
        link: options.link.name().to_string(),
        bits_per_second: BITS_PER_SECOND,
        worst: Worst::of(&cuts),
        cuts,
    })
}

/// One transfer. Returns when the link was cut and restored, in milliseconds, and what came.
fn cut(
    options: &Options,
    testbed: &Testbed,
    kind: CutKind,
) -> Result<(u64, u64, Series), RunError> {
    let pinned_to = options.pinning.then(cpu::first_two).flatten();
    let quarter = options.quarter;
    let child = |side, namespace: &str, links, cpu| {
        let stream = StreamSpec { side, links, seconds: quarter.as_secs_f64() * 6.0 };
        ChildProcess::start(
            &options.program,
            &ChildSpec {
                role: Role::Stream(stream),
                namespace: Some(namespace.to_string()),
                cpu,
                parent: process::id(),
            },
        )
    };
    let links = testbed.links();
    let own = options.link.links(links.iter().filter_map(|link| link.client));
    let theirs = options.link.links(links.iter().map(|link| link.server));
    let [source_cpu, target_cpu] = pinned_to.map_or([None; 2], |cpus| cpus.map(Some));
    let mut target = child(Side::Target, testbed.server(), theirs, target_cpu)?;
    let peers = match target.receive()? {
        Line::Peers(peers) => peers,
        line => return Err(target.unexpected(&line).into()),
    };
    let _source = child(Side::Source(peers), testbed.client(), own, source_cpu)?;
    match target.receive()? {
        Line::Flowing => {}
        line => return Err(target.unexpected(&line).into()),
    }
    let since = Stopwatch::start();
    let now_ms = || since.elapsed_ns() / 1_000_000;
    pause(quarter);
    let cut_ms = now_ms();
    kind.apply(testbed, true)?;
    pause(quarter * 2);
    // Restored at some time during the call: what came back before its end is not counted.
    kind.apply(testbed, false)?;
    let restored_ms = now_ms();
    match target.receive()? {
        Line::Series(series) => Ok((cut_ms, restored_ms, series)),
        line => Err(target.unexpected(&line).into()),
    }
}

/// Rate of each link.
const BITS_PER_SECOND: u64 = 1_000_000_000;
/// The link that is cut.
const CUT_LINK: usize = 0;
