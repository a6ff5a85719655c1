//! Keys of a fabric of flits.

use super::super::flit::{Allocator, FlitConfiguration, PortConfiguration, RouterConfiguration};
use super::super::routing::LanePolicy;
use super::super::topology::Topology;
use super::reader::Reader;
use super::{
    BYTES_MAX, ConfigurationError, FabricConfiguration, MTU_MIN_BYTES, RATE_MAX_BPS, TIME_MAX_PS,
};

pub(super) fn read(
    keys: &mut Reader,
    topology: &Topology,
) -> Result<FlitConfiguration, ConfigurationError> {
    let channels = keys.number("channels", 4, 1, 16)? as u8;
    let router = read_router(keys, channels)?;
    let mut time = |key, default, least| keys.number(key, default, least, TIME_MAX_PS);
    let flit_ps = time("flit_ps", 1_000, 1)?;
    // In BookSim2, a channel takes one cycle more than its latency. A torus is folded, so its
    // channels take twice the latency. A credit takes as long as a flit.
    let is_torus = topology.grid().is_some_and(|grid| grid.is_torus);
    let (hop_ps, credit_ps) = match router {
        Some(_) if is_torus => (flit_ps * 3, flit_ps * 3),
        Some(_) => (flit_ps * 2, flit_ps * 2),
        None => (2_000, 1_000),
    };
    let end_ps = if router.is_some() { flit_ps * 2 } else { 2_000 };
    let (hop_ps, entry_ps) = (time("hop_ps", hop_ps, 1)?, time("entry_ps", end_ps, 0)?);
    let (exit_ps, credit_ps) = (time("exit_ps", end_ps, 0)?, time("credit_ps", credit_ps, 0)?);
    let clock_ps = time("clock_ps", 0, 0)?;
    let mut bytes = |key, default, least| keys.number(key, default, least, BYTES_MAX);
    let configuration = FlitConfiguration {
        flit_ps,
        hop_ps,
        entry_ps,
        exit_ps,
        credit_ps,
        clock_ps,
        flit_payload_bytes: bytes("flit_payload_bytes", 64, 1)? as u32,
        packet_overhead_bytes: bytes("packet_overhead_bytes", 0, 0)? as u32,
        ports: PortConfiguration {
            mtu_bytes: bytes("mtu_bytes", 4_096, MTU_MIN_BYTES)? as u32,
            payload_min_bytes: bytes("payload_min_bytes", 0, 0)? as u32,
            overhead_bytes: bytes("overhead_bytes", 0, 0)? as u32,
            gap_bytes: bytes("gap_bytes", 0, 0)? as u32,
            rate_bps: keys.number("port_rate_bps", 0, 0, RATE_MAX_BPS)?,
        },
        channels,
        buffer_flits: keys.number(
            "buffer_flits",
            if router.is_some() { 8 } else { 16 },
            1,
            1 << 14,
        )? as u16,
        router,
    };
    let ports_ps = configuration.ports.rate_bps;
    if router.is_some() && ports_ps > 0 {
        let expected = "0 with router = \"booksim2\", whose hosts are part of the fabric";
        return Err(keys.wrong_number("port_rate_bps", ports_ps, expected));
    }
    Ok(configuration)
}

/// Reads the keys of routers with a clock. If the fabric has no such routers, this function leaves
/// the keys unread, so that they are reported as unknown.
fn read_router(
    keys: &mut Reader,
    channels: u8,
) -> Result<Option<RouterConfiguration>, ConfigurationError> {
    if keys.word("router", "ideal", &["ideal", "booksim2"])? == "ideal" {
        return Ok(None);
    }
    let default = RouterConfiguration::BOOKSIM2;
    let channel_allocator = read_allocator(keys, "channel_allocator")?;
    let switch_allocator = read_allocator(keys, "switch_allocator")?;
    let mut number = |key, default: u8, least, most: u8| {
        keys.number(key, default.into(), least, most.into()).map(|number| number as u8)
    };
    Ok(Some(RouterConfiguration {
        channel_allocator,
        switch_allocator,
        input_speedup: number("input_speedup", default.input_speedup, 1, channels)?,
        rounds: number("allocator_rounds", default.rounds, 1, ROUNDS_MAX)?,
        routing_cycles: number("routing_cycles", default.routing_cycles, 0, CYCLES_MAX)?,
        channel_cycles: number("channel_cycles", default.channel_cycles, 1, CYCLES_MAX)?,
        switch_cycles: number("switch_cycles", default.switch_cycles, 1, CYCLES_MAX)?,
        crossing_cycles: number("crossing_cycles", default.crossing_cycles, 1, CYCLES_MAX)?,
        is_speculative: keys.flag("is_speculative", default.is_speculative)?,
    }))
}

fn read_allocator(keys: &mut Reader, key: &str) -> Result<Allocator, ConfigurationError> {
    Ok(match keys.word(key, "islip", &["islip", "wavefront"])?.as_str() {
        "wavefront" => Allocator::Wavefront,
        _ => Allocator::Islip,
    })
}

impl FabricConfiguration {
    /// Returns the settings of routers with a clock, if the fabric has such routers.
    pub const fn router(&self) -> Option<&RouterConfiguration> {
        match self {
            Self::Flit(flit) => flit.router.as_ref(),
            _ => None,
        }
    }
}

/// Checks that a dateline rule has two lanes on each ring of more than 2 switches. In a fabric of
/// flits, lanes are virtual channels; in a fabric of worms, lanes are parallel cables.
pub(super) fn check_lanes(
    (fabric_keys, topology_keys): (&Reader, &Reader),
    topology: &Topology,
    lanes: LanePolicy,
    fabric: &FabricConfiguration,
) -> Result<(), ConfigurationError> {
    let is_ring = |grid: &super::super::topology::Grid| {
        grid.is_torus && grid.sizes.iter().any(|&size| size > 2)
    };
    if lanes == LanePolicy::Free || !topology.grid().is_some_and(is_ring) {
        return Ok(());
    }
    let expected = "2 or more on a torus, because with 1, packets can wait for each other in a \
                    circle (or set lanes = \"free\" in [routing])";
    match fabric {
        FabricConfiguration::Flit(flit) if flit.channels < 2 => {
            Err(fabric_keys.wrong_number("channels", flit.channels.into(), expected))
        }
        FabricConfiguration::Wormhole(_) if topology.links().iter().all(|link| link.lane == 0) => {
            Err(topology_keys.wrong_number("lanes", 1, expected))
        }
        _ => Ok(()),
    }
}

/// Maximum number of rounds of an allocator in one cycle. A router has at most 64 ports, so more
/// than 64 rounds would find no further matches.
const ROUNDS_MAX: u8 = 64;
/// Maximum duration of a stage, in cycles. Real routers have far shorter pipelines.
const CYCLES_MAX: u8 = 64;

#[cfg(test)]
mod tests {
    use super::super::super::flit::RouterConfiguration;
    use super::super::{Configuration, FabricConfiguration};

    fn refused(text: &str) -> String {
        Configuration::parse("a.toml", text).expect_err("it is wrong").to_string()
    }

    #[test]
    fn one_name_selects_the_defaults_of_a_booksim2_router() {
        for (kind, cycles) in [("mesh", 2), ("torus", 3)] {
            let text = format!(
                "[topology]\nkind = \"{kind}\"\n[fabric]\nkind = \"flit\"\nrouter = \"booksim2\"\n"
            );
            let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
            let FabricConfiguration::Flit(flit) = configuration.fabric else { panic!("flits") };
            assert_eq!(flit.router, Some(RouterConfiguration::BOOKSIM2));
            assert_eq!((flit.hop_ps, flit.credit_ps), (cycles * 1_000, cycles * 1_000));
            assert_eq!((flit.buffer_flits, flit.channels), (8, 4));
            let again = Configuration::parse("b.toml", &configuration.effective).expect("valid");
            assert_eq!(again.effective, configuration.effective);
            assert_eq!(again.fabric, configuration.fabric);
        }
    }

    #[test]
    fn router_keys_are_accepted_only_with_a_router() {
        let text = "[fabric]\nkind = \"flit\"\ninput_speedup = 2\n";
        assert!(refused(text).contains("unknown key `input_speedup` in [fabric]"));
        let with_router = text.replace("input", "router = \"booksim2\"\ninput");
        assert!(Configuration::parse("a.toml", &with_router).is_ok());
        assert!(refused(&with_router.replace("= 2", "= 5")).contains("a whole number from 1 to 4"));
    }

    /// Each error names the key, the value, and a value that would work.
    #[test]
    fn incompatible_settings_are_reported_with_a_compatible_value() {
        let flit = "[fabric]\nkind = \"flit\"\n";
        let torus = "[topology]\nkind = \"torus\"\n";
        let cases = [
            (
                "[topology]\nkind = \"fat_tree\"\nradix = 5\n".to_owned(),
                "a.toml:3: radix in [topology] is 5, but must be even; 6 would do",
            ),
            (
                format!("{torus}{flit}channels = 1\n"),
                "a.toml:5: channels in [fabric] is 1, but must be 2 or more on a torus, because \
                 with 1, packets can wait for each other in a circle (or set lanes = \"free\" in \
                 [routing])",
            ),
            (
                format!("{torus}[fabric]\nkind = \"wormhole\"\n"),
                "a.toml: lanes in [topology] is 1, but must be 2 or more on a torus, because with \
                 1, packets can wait for each other in a circle (or set lanes = \"free\" in \
                 [routing])",
            ),
            (
                "[fabric]\nkind = \"wormhole\"\n[host]\nkind = \"edge\"\n".to_owned(),
                "a.toml:4: kind in [host] is \"edge\", but must be \"model\" on this fabric, or [fabric] \
                 kind = \"ethernet\"",
            ),
            (
                "[topology]\nhosts = 12\n[workload]\npattern = \"bit_reverse\"\n".to_owned(),
                "a.toml:4: pattern in [workload] is \"bit_reverse\", but must be used with a power-of-two \
                 number of hosts, such as 8 or 16, not with 12",
            ),
            (
                "[topology]\nhosts = 12\n[workload]\npattern = \"transpose\"\n".to_owned(),
                "a.toml:4: pattern in [workload] is \"transpose\", but must be used with a square number of \
                 hosts, such as 9 or 16, not with 12",
            ),
            (
                format!("{flit}router = \"booksim2\"\nport_rate_bps = 1_000_000\n"),
                "a.toml:4: port_rate_bps in [fabric] is 1_000_000, but must be 0 with router = \"booksim2\", \
                 whose hosts are part of the fabric",
            ),
            (
                "[workload]\nload_percent = 1000.5\n".to_owned(),
                "a.toml:2: load_percent in [workload] is 1000.5, but must be from 0 to 1000 %; \"1000 %\" would \
                 do",
            ),
            (
                "[workload]\npattern = \"hotspot\"\ntargets = []\n".to_owned(),
                "a.toml: the length of targets in [workload] is 0, but must be 1 or more",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(refused(&text), expected);
        }
        let works = format!("{torus}[routing]\nlanes = \"free\"\n{flit}channels = 1\n");
        assert!(Configuration::parse("a.toml", &works).is_ok());
    }
}
