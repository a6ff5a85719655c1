//! A bare stream of frames over packet sockets: what the kernel, the virtual links and the shapers of
//! this host carry with no protocol at all.

use std::io;
use std::time::Duration;

use ethernot::{LinkSpec, PacketConfig};
use link::yardstick::packet::{BarePacket, BareReceive};
use nix::errno::Errno;

use super::bare::{PORT, STATION, Station, listed, station};
use crate::clock::Stopwatch;
use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, Test, Transport,
    TransportError,
};
use crate::transports::patience::Patience;

/// Full frames without content over all links: each link has so many under way at most, and the
/// receiver tells every [`TELL_FRAMES`] how many came. Nothing is checked, placed or sent again.
#[derive(Debug, Clone, Copy)]
pub struct BareStream;

impl Transport for BareStream {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "full frames without content, nothing checked or sent again: what this host carries"
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn supports(&self, test: Test, message_bytes: u64, _mtu: Option<u32>) -> bool {
        test == Test::OneWay && message_bytes >= MESSAGE_BYTES_MIN
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        let links = open(&setup.server_links, TELL_BYTES)?;
        let frames_each = frames_of(setup);
        Ok(Box::new(Server { links, frames_each }))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        let sockets = open(&setup.client_links, content_bytes(setup))?;
        let links = sockets.into_iter().enumerate().map(|(index, socket)| {
            let text = advertisement.parameters.get(&format!("{STATION}{index}"));
            let server = text.and_then(|text| station(text));
            let server = server.ok_or(TransportError::Advertisement { what: STATION })?;
            Ok(Sending { socket, server, sent: 0, told: 0 })
        });
        let links: Result<Vec<_>, TransportError> = links.collect();
        Ok(Box::new(Client { links: links?, frames_each: frames_of(setup) }))
    }
}

struct Server {
    links: Vec<BarePacket>,
    frames_each: u64,
}

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        let stations = self.links.iter().enumerate();
        let parameters =
            stations.map(|(index, link)| (format!("{STATION}{index}"), listed(link.station())));
        Advertisement { addresses: Vec::new(), parameters: parameters.collect() }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        let mut missing = phase.operations * self.frames_each;
        let mut counts = vec![(0_u64, 0_u64); self.links.len()];
        let mut patience = Patience::new("wait for frames of a bare stream");
        let mut silent: Option<Stopwatch> = None;
        while missing > 0 {
            let mut came = false;
            for (link, (received, told)) in self.links.iter_mut().zip(&mut counts) {
                let mut from = None;
                for _ in 0..TELL_FRAMES {
                    let Some((sender, _)) = link.poll_number() else { break };
                    (*received, from) = (*received + 1, Some(sender));
                }
                let Some(from) = from else { continue };
                came = true;
                if *received >= *told + TELL_FRAMES || *received >= missing {
                    missing = missing.saturating_sub(*received - *told);
                    *told = *received;
                    send(link, from, *received)?;
                }
            }
            let untold: u64 = counts.iter().map(|(received, told)| received - told).sum();
            if came {
                patience.on_progress();
                silent = None;
            } else if untold > 0 && untold >= missing {
                break;
            } else if untold > 0 && silent.get_or_insert_with(Stopwatch::start).has_passed(SILENCE)
            {
                // What was lost does not come any more; the client counts it as sent.
                break;
            } else {
                patience.on_idle()?;
            }
        }
        Ok(Observed::default())
    }
}

struct Client {
    links: Vec<Sending>,
    frames_each: u64,
}

struct Sending {
    socket: BarePacket,
    server: Station,
    sent: u64,
    told: u64,
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, _: &mut Latencies) -> Result<Observed, TransportError> {
        for link in &mut self.links {
            (link.sent, link.told) = (0, 0);
        }
        let mut left = phase.operations * self.frames_each;
        let mut patience = Patience::new("send a bare stream");
        let mut stuck: Option<Stopwatch> = None;
        while left > 0 {
            let mut moved = false;
            for link in &mut self.links {
                while let Some((_, number)) = link.socket.poll_number() {
                    link.told = link.told.max(number);
                    moved = true;
                }
                let room = WINDOW_FRAMES.saturating_sub(link.sent - link.told);
                for _ in 0..room.min(left).min(BURST_FRAMES) {
                    send(&mut link.socket, link.server, link.sent)?;
                    link.sent += 1;
                    left -= 1;
                    moved = true;
                }
            }
            if moved {
                patience.on_progress();
                stuck = None;
                continue;
            }
            patience.on_idle()?;
            if stuck.get_or_insert_with(Stopwatch::start).has_passed(SILENCE) {
                // Lost frames would close the window for ever.
                for link in &mut self.links {
                    link.told = link.sent;
                }
            }
        }
        Ok(Observed::default())
    }
}

fn open(links: &[String], content_bytes: u16) -> Result<Vec<BarePacket>, TransportError> {
    let open = |name: &String| {
        let failed = |error: &dyn std::fmt::Display| {
            TransportError::Other(format!("open {name} for a bare stream: {error}"))
        };
        let specs = LinkSpec::parse_list(name).map_err(|error| failed(&error))?;
        let Some(LinkSpec::Packet { interface, .. }) = specs.into_iter().next() else {
            return Err(failed(&"a bare stream needs packet links"));
        };
        let config = PacketConfig { port: PORT, ..PacketConfig::new(interface) };
        BarePacket::open(&config, BareReceive::Ring, content_bytes).map_err(|error| failed(&error))
    };
    links.iter().map(open).collect()
}

fn send(link: &mut BarePacket, to: Station, number: u64) -> Result<(), TransportError> {
    let mut patience = Patience::new("send a frame of a bare stream");
    loop {
        match link.send_number(to, number) {
            Ok(()) => return Ok(()),
            Err(error) if is_passing(&error) => patience.on_idle()?,
            Err(error) => return Err(TransportError::io("send a frame of a bare stream")(error)),
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// Bytes behind the Ethernet header and the envelope of a full frame.
fn content_bytes(setup: &Setup) -> u16 {
    (setup.mtu.unwrap_or(ETHERNET_MTU) - ENVELOPE_BYTES) as u16
}

/// Frames of one message, with as much payload each as one of the edge protocol has.
fn frames_of(setup: &Setup) -> u64 {
    let payload_bytes = u64::from(content_bytes(setup)) - EDGE_BYTES;
    setup.message_bytes.div_ceil(payload_bytes)
}

/// The name of the contender.
pub const NAME: &str = "bare-stream";

/// Frames that a link has under way at most: less than a port of a switch holds.
const WINDOW_FRAMES: u64 = 128;

/// Frames sent on one link before the next has its turn.
const BURST_FRAMES: u64 = 4;

/// Frames for which the receiver sends one.
const TELL_FRAMES: u64 = 32;

/// Smaller messages are not a stream of full frames.
const MESSAGE_BYTES_MIN: u64 = 128 << 10;

/// Content of the frame that tells how many came: a number.
const TELL_BYTES: u16 = 34;

/// Headers of the edge protocol in a middle fragment.
const EDGE_BYTES: u64 = 32;

const ENVELOPE_BYTES: u32 = 12;
const ETHERNET_MTU: u32 = 1500;

/// How long nothing comes until what is missing counts as lost.
const SILENCE: Duration = Duration::from_millis(20);
