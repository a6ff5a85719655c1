//! Keys of Homa, the receiver-driven transport.

use std::collections::VecDeque;

use super::super::ethernet::{CUTOFFS_MAX, ClassBy, EthernetConfiguration, HomaConfiguration};
use super::super::topology::{LinkKind, Topology};
use super::reader::Reader;
use super::transport::{ACK_BYTES, LOSS_MAX_PPM, TIMEOUT_MAX_PS, TIMEOUT_MIN_PS};
use super::{Configuration, ConfigurationError, MESSAGE_MAX_BYTES};

/// Reads Homa's keys in `[host]`.
pub(super) fn read(
    keys: &mut Reader,
    topology: &Topology,
    ethernet: &EthernetConfiguration,
) -> Result<HomaConfiguration, ConfigurationError> {
    let classes = u64::from(ethernet.queues.classes);
    let round_trip = round_trip_bytes(topology, ethernet).min(MESSAGE_MAX_BYTES);
    let rtt_bytes = keys.number("rtt_bytes", round_trip, 1, MESSAGE_MAX_BYTES)?;
    let unscheduled = keys.number("unscheduled_classes", (classes / 2).max(1), 1, classes)?;
    let halved = |class: u64| (rtt_bytes >> (unscheduled - 1 - class)).max(1);
    let default: Vec<u64> = (0..unscheduled - 1).map(halved).collect();
    let cutoffs = keys.numbers("cutoff_bytes", &default, 1, MESSAGE_MAX_BYTES)?;
    if cutoffs.len() != default.len() || !cutoffs.is_sorted() {
        let expected = format!(
            "{} lengths in ascending order, one less than unscheduled_classes; {default:?} would do",
            default.len()
        );
        return Err(keys.wrong_text("cutoff_bytes", format!("{cutoffs:?}"), expected));
    }
    let granted = if classes > 1 { (classes - unscheduled).max(1) } else { 4 };
    let mut cutoff_bytes = [u32::MAX; CUTOFFS_MAX];
    for (place, cutoff) in cutoff_bytes.iter_mut().zip(&cutoffs) {
        *place = *cutoff as u32;
    }
    Ok(HomaConfiguration {
        rtt_bytes: rtt_bytes as u32,
        overcommitment: keys.number("overcommitment", granted, 1, 1 << 16)? as u32,
        unscheduled_classes: unscheduled as u8,
        cutoff_bytes,
        oldest_percent: keys.number("oldest_percent", 5, 0, 100)? as u32,
        ack_bytes: keys.number("ack_bytes", ACK_BYTES, 0, ethernet.mtu_bytes.into())? as u32,
        timeout_ps: keys.number("timeout_ps", 1_000_000_000, TIMEOUT_MIN_PS, TIMEOUT_MAX_PS)?,
        loss_ppm: keys.number("loss_ppm", 0, 0, LOSS_MAX_PPM)? as u32,
    })
}

/// Returns the number of bytes that the cable of host 0 carries in one round trip. In a round trip,
/// a full frame goes to the farthest host and a short frame returns. Each switch delays each of
/// these frames by the maximum default jitter, which is the time of one frame.
fn round_trip_bytes(topology: &Topology, ethernet: &EthernetConfiguration) -> u64 {
    let short = u64::from(ethernet.frame_bytes_min());
    let both = u64::from(ethernet.frame_bytes_max()) + short;
    let time_ps = |link: u32, rate_bps: u64| {
        let is_to_switch = !topology.is_host(topology.links()[link as usize].to);
        let bytes = if is_to_switch { 2 * both } else { both };
        bytes * 8_000_000_000_000 / rate_bps
    };
    let rate_bps = |link: u32| {
        let of_kind = match topology.links()[link as usize].kind {
            LinkKind::Host => ethernet.host_rate_bps,
            LinkKind::Switch { .. } => ethernet.trunk_rate_bps,
        };
        topology.cable_settings(link).rate_bps.unwrap_or(of_kind).max(1)
    };
    let of_link_ps = |link: u32| {
        let own_ps = topology.cable_settings(link).propagation_ps;
        time_ps(link, rate_bps(link)) + 2 * own_ps.unwrap_or(ethernet.propagation_ps)
    };
    // Visits nodes in order of their distance in links. Each entry has a node and its round-trip
    // time.
    let mut is_known = vec![false; topology.nodes() as usize];
    let mut open = VecDeque::from([(0, 0)]);
    let mut farthest_ps = 0_u64;
    while let Some((node, time_ps)) = open.pop_front() {
        if std::mem::replace(&mut is_known[node as usize], true) {
            continue;
        }
        if topology.is_host(node) && node != 0 {
            farthest_ps = farthest_ps.max(time_ps);
            continue;
        }
        let latency_ps = if node == 0 { 0 } else { 2 * ethernet.latency_ps };
        open.extend(topology.outgoing(node).iter().map(|&link| {
            let to = topology.links()[link as usize].to;
            (to, time_ps + latency_ps + of_link_ps(link))
        }));
    }
    let rate = u128::from(rate_bps(topology.host_link(0)));
    let bytes = u128::from(farthest_ps) * rate / 8_000_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
}

impl Configuration {
    /// Rejects keys that set classes, because Homa itself sets the classes of frames.
    pub(super) fn check_homa(
        &self,
        ethernet: &EthernetConfiguration,
    ) -> Result<(), ConfigurationError> {
        let word = match ethernet.queues.class_by {
            _ if ethernet.homa.is_none() => return Ok(()),
            ClassBy::Tag => return Ok(()),
            ClassBy::Source => "source",
            ClassBy::Workload => "workload",
            ClassBy::Size { .. } => "size",
        };
        let expected = "absent with [host] transport = \"homa\", which gives frames their classes";
        Err(self.written.value("fabric", "class_by", format!("\"{word}\""), expected.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Configuration, FabricConfiguration};
    use super::*;

    fn homa(text: &str) -> HomaConfiguration {
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it is valid");
        assert_eq!(again.fabric, configuration.fabric);
        assert_eq!(again.effective, configuration.effective);
        let FabricConfiguration::Ethernet(ethernet) = configuration.fabric else {
            panic!("Ethernet is the default");
        };
        assert_eq!(ethernet.transport, None);
        ethernet.homa.expect("hosts have it")
    }

    const HOMA: &str = "[host]\ntransport = \"homa\"\n";

    #[test]
    fn classes_and_cutoffs_have_defaults() {
        let single = homa(HOMA);
        assert_eq!((single.unscheduled_classes, single.overcommitment), (1, 4));
        let eight = homa(&format!("[fabric]\nclasses = 8\n{HOMA}rtt_bytes = 8000\n"));
        assert_eq!((eight.unscheduled_classes, eight.overcommitment), (4, 4));
        assert_eq!(eight.cutoff_bytes[..4], [1_000, 2_000, 4_000, u32::MAX]);
        let own = "unscheduled_classes = 3\ncutoff_bytes = [300, \"2 kB\"]\novercommitment = 9\n";
        let own = homa(&format!("[fabric]\nclasses = 8\n{HOMA}{own}"));
        assert_eq!((own.unscheduled_classes, own.overcommitment), (3, 9));
        assert_eq!(own.cutoff_bytes[..3], [300, 2_000, u32::MAX]);
    }

    /// A full frame and a short frame have 1598 bytes in total.
    #[test]
    fn a_round_trip_is_that_to_the_farthest_host() {
        let bytes = |text: &str| homa(&format!("{text}{HOMA}")).rtt_bytes;
        // On a star, the frames take three times their own transmission time: once at the host,
        // once at the switch, and at most once more as jitter at the switch. Four cables and two
        // switch latencies are added.
        let star_ps = 3 * 1_598 * 800 + 4 * 10_000 + 2 * 500_000;
        assert_eq!(bytes(""), star_ps / 800);
        // A leaf-spine network adds two cables and two switches in each direction.
        let far_ps = 7 * 1_598 * 800 + 8 * 10_000 + 6 * 500_000;
        assert_eq!(bytes("[topology]\nkind = \"leaf_spine\"\n"), far_ps / 800);
        // At ten times the rate, the cable carries ten times as many bytes during the delays that
        // do not depend on the rate.
        let fast_ps = 3 * 1_598 * 80 + 4 * 10_000 + 2 * 500_000;
        assert_eq!(bytes("[fabric]\nhost_rate_bps = \"100 Gb/s\"\n"), fast_ps / 80);
        let graph = "[topology]\nkind = \"graph\"\n[[topology.cables]]\nends = [\"h0\", \"s0\"]\n\
                     [[topology.cables]]\nends = [\"h1\", \"s0\"]\nrate_bps = \"1 Gb/s\"\npropagation_ps = \"3 us\"\n";
        let slow_ps = 2 * 1_598 * 800 + 1_598 * 8_000 + 2 * 10_000 + 2 * 3_000_000 + 2 * 500_000;
        assert_eq!(bytes(graph), slow_ps / 800);
    }
}
