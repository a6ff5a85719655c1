//! Finds the stations that receive at a port, by broadcast.

use std::os::fd::AsFd;
use std::time::{Duration, Instant as HostInstant};

use wire_edge::EnvelopeKind;

use super::bare::Bare;
use super::{PacketConfig, PacketError};
use crate::ethernet::{Arrival, BROADCAST, Station};
use crate::wait::wait_readable;

/// Finds the stations on the network of `interface` whose endpoints receive at `port`.
///
/// Broadcasts requests until the first station answers, then waits a little longer for more
/// answers. If there are two answers, two hosts use the port. Takes at most `limit`.
///
/// # Errors
/// Returns [`PacketError::NoAnswer`] if no station answers, and all errors of
/// [`super::PacketLink::open`].
pub fn discover(
    interface: &str,
    ethertype: u16,
    vlan: Option<u16>,
    port: u16,
    limit: Duration,
) -> Result<Vec<Station>, PacketError> {
    let config =
        PacketConfig { ethertype, vlan, receive_ring_bytes: 0, ..PacketConfig::new(interface) };
    let mut asker = Bare::open(&config, true)?;
    let started = HostInstant::now();
    let mut until = started + limit;
    let (mut ask_at, mut pause) = (started, FIRST_PAUSE);
    let mut found: Vec<Station> = Vec::new();
    loop {
        let now = HostInstant::now();
        if now >= until {
            break;
        }
        if now >= ask_at {
            asker.ask(port);
            ask_at = now + pause;
            pause *= 2;
        }
        let deadline = until.min(ask_at);
        wait_readable(&[asker.socket()], deadline.saturating_duration_since(now));
        let before = found.len();
        asker.collect(port, &mut found);
        if before == 0 && !found.is_empty() {
            until = until.min(HostInstant::now() + GRACE);
        }
    }
    if found.is_empty() {
        return Err(PacketError::NoAnswer {
            interface: interface.to_string(),
            who: format!("an endpoint at port {port}"),
            limit_ms: limit.as_millis(),
        });
    }
    Ok(found)
}

impl Bare {
    //= protocol.md: envelope.5
    fn ask(&mut self, port: u16) {
        let framing = self.framing;
        let Some(own) = self.port_mut() else { return };
        own.transmitter.build_empty(&framing, EnvelopeKind::Discover, (BROADCAST, port));
        // Ignore errors, because the request is repeated.
        let _ = own.transmitter.send(own.socket.as_fd(), 0);
    }

    fn collect(&mut self, port: u16, found: &mut Vec<Station>) {
        let framing = self.framing;
        let Some(ring) = self.ring_mut() else { return };
        for _ in 0..ring.slots() {
            let Some(received) = ring.peek() else { break };
            if let Ok(Arrival::Here { from: (station, from_port) }) =
                framing.check(received.bytes, received.tag)
                && from_port == port
                && found.len() < STATIONS_MAX
                && !found.contains(&station)
            {
                found.push(station);
            }
            ring.release();
        }
    }
}

/// Pause before the first repetition of the request. The pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Time to wait for further answers after the first answer. This is several times as long as a
/// process on a busy host usually waits for a processor.
const GRACE: Duration = Duration::from_millis(20);

/// Maximum number of stations reported. A sensible network has far fewer endpoints at one port.
const STATIONS_MAX: usize = 1024;
