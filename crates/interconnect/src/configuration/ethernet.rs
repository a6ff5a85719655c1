//! Keys of Ethernet switches and of their hosts.

use super::super::ethernet::{
    CLASSES_MAX, ClassBy, EthernetConfiguration, Forwarding, NicConfiguration, QueueConfiguration,
    RAILS_MAX, Striping,
};
use super::super::receiving::{InterruptConfiguration, ReceivingConfiguration};
use super::super::routing::Choice;
use super::reader::Reader;
use super::{
    BYTES_MAX, ConfigurationError, FabricConfiguration, MTU_MIN_BYTES, RATE_MAX_BPS, RATE_MIN_BPS,
    TIME_MAX_PS,
};

pub(super) fn read_ethernet(
    keys: &mut Reader,
) -> Result<EthernetConfiguration, ConfigurationError> {
    let host_rate_bps = keys.number("host_rate_bps", 10_000_000_000, RATE_MIN_BPS, RATE_MAX_BPS)?;
    let trunk_rate_bps =
        keys.number("trunk_rate_bps", host_rate_bps, RATE_MIN_BPS, RATE_MAX_BPS)?;
    let header_bytes = keys.number("cut_through_bytes", 0, 0, BYTES_MAX)? as u32;
    Ok(EthernetConfiguration {
        host_rate_bps,
        trunk_rate_bps,
        mtu_bytes: keys.number("mtu_bytes", 1500, MTU_MIN_BYTES, BYTES_MAX)? as u32,
        payload_min_bytes: keys.number("payload_min_bytes", 46, 0, BYTES_MAX)? as u32,
        overhead_bytes: keys.number("overhead_bytes", 26, 0, BYTES_MAX)? as u32,
        gap_bytes: keys.number("gap_bytes", 12, 0, BYTES_MAX)? as u32,
        propagation_ps: keys.number("propagation_ps", 10_000, 0, TIME_MAX_PS)?,
        latency_ps: keys.number("latency_ps", 500_000, 0, TIME_MAX_PS)?,
        host_frame_interval_ps: keys.number("host_frame_interval_ps", 0, 0, TIME_MAX_PS)?,
        buffer_bytes: keys.number("buffer_bytes", 0, 0, BUFFER_MAX_BYTES)?,
        // Placeholder: the jitter is read after the section `[host]`, because only some kinds of
        // hosts permit this key.
        jitter_percent: 0,
        forwarding: match header_bytes {
            0 => Forwarding::StoreAndForward,
            header_bytes => Forwarding::CutThrough { header_bytes },
        },
        choice: read_choice(keys)?,
        salt: 0,
        nic: read_nic(keys)?,
        queues: read_queues(keys)?,
        // Placeholders: the reader of the section `[host]` reads these keys later.
        transport: None,
        homa: None,
    })
}

fn read_choice(keys: &mut Reader) -> Result<Choice, ConfigurationError> {
    let choices = ["per_flow", "per_source", "least_loaded", "spray", "flowlet", "ugal"];
    Ok(match keys.word("choice", "per_flow", &choices)?.as_str() {
        "per_source" => Choice::PerSource,
        "least_loaded" => Choice::LeastLoaded,
        "spray" => Choice::Spray,
        "flowlet" => {
            Choice::Flowlet { gap_ps: keys.number("flowlet_gap_ps", 10_000_000, 0, TIME_MAX_PS)? }
        }
        "ugal" => Choice::Ugal,
        _ => Choice::PerFlow,
    })
}

fn read_nic(keys: &mut Reader) -> Result<NicConfiguration, ConfigurationError> {
    Ok(NicConfiguration {
        rails: keys.number("rails", 1, 1, RAILS_MAX.into())? as u32,
        striping: match keys
            .word("striping", "per_message", &["per_message", "per_packet"])?
            .as_str()
        {
            "per_packet" => Striping::PerPacket,
            _ => Striping::PerMessage,
        },
        rate_bps: match keys.number("nic_rate_bps", 0, 0, RATE_MAX_BPS)? {
            rate @ 1..RATE_MIN_BPS => {
                let expected = format!("0 or from {RATE_MIN_BPS} to {RATE_MAX_BPS}");
                return Err(keys.wrong_number("nic_rate_bps", rate, &expected));
            }
            rate => rate,
        },
        frame_interval_ps: keys.number("nic_frame_interval_ps", 0, 0, TIME_MAX_PS)?,
    })
}

fn read_queues(keys: &mut Reader) -> Result<QueueConfiguration, ConfigurationError> {
    let classes = keys.number("classes", 1, 1, CLASSES_MAX.into())?;
    let class_by =
        match keys.word("class_by", "tag", &["tag", "source", "size", "workload"])?.as_str() {
            "source" => ClassBy::Source,
            "workload" => ClassBy::Workload,
            "size" => {
                ClassBy::Size { small_bytes: keys.number("small_bytes", 1_500, 1, 1 << 30)? as u32 }
            }
            _ => ClassBy::Tag,
        };
    let lossless = keys.numbers("lossless", &[], 0, u64::from(CLASSES_MAX) - 1)?;
    if let Some(&class) = lossless.iter().find(|&&class| class >= classes) {
        let expected = format!("less than classes, {classes}; classes = {} would do", class + 1);
        return Err(keys.wrong_number("lossless", class, &expected));
    }
    let pause_bytes = keys.number("pause_bytes", 50_000, 1, BUFFER_MAX_BYTES)?;
    let ecn_max_bytes = keys.number("ecn_max_bytes", 0, 0, BUFFER_MAX_BYTES)?;
    let ecn_min_bytes = keys.number("ecn_min_bytes", ecn_max_bytes, 0, BUFFER_MAX_BYTES)?;
    if ecn_min_bytes > ecn_max_bytes {
        let expected = match ecn_max_bytes {
            0 => format!(
                "0 without ecn_max_bytes; with it, ecn_max_bytes = {ecn_min_bytes} would do"
            ),
            most => format!("at most ecn_max_bytes, {most}; {most} would do"),
        };
        return Err(keys.wrong_number("ecn_min_bytes", ecn_min_bytes, &expected));
    }
    let queues = QueueConfiguration {
        shared_bytes: keys.number("shared_bytes", 0, 0, BUFFER_MAX_BYTES)?,
        alpha_percent: keys.number("alpha_percent", 100, 1, 12_800)? as u32,
        ecn_min_bytes,
        ecn_max_bytes,
        ecn_max_percent: keys.number("ecn_max_percent", 100, 0, 100)? as u32,
        classes: classes as u8,
        class_by,
        lossless: lossless.iter().fold(0, |set, class| set | 1 << class),
        pause_bytes,
        resume_bytes: keys.number("resume_bytes", pause_bytes / 2, 0, pause_bytes)?,
        headroom_bytes: keys.number("headroom_bytes", 0, 0, BUFFER_MAX_BYTES)?,
    };
    Ok(queues)
}

/// Reads the maximum random delay of a frame at a switch, in percent of the frame's transmission
/// time. The key exists only if hosts react to losses. For other hosts, the caller sets the delay
/// to 0.
pub(super) fn read_jitter(keys: &mut Reader) -> Result<u32, ConfigurationError> {
    Ok(keys.number("jitter_percent", 100, 0, JITTER_MAX_PERCENT)? as u32)
}

/// Rejects settings that exclude each other.
pub(super) fn check_ethernet(
    keys: &Reader,
    ethernet: &EthernetConfiguration,
) -> Result<(), ConfigurationError> {
    // The engine of a switch limits the rate of frames from hosts. Frames that wait for this engine
    // occupy no buffer. A switch decides by the used buffer whether to pause a sender, so it could
    // not pause the senders of these frames.
    if ethernet.queues.lossless != 0 && ethernet.host_frame_interval_ps > 0 {
        let value = ethernet.host_frame_interval_ps;
        return Err(keys.wrong_number("host_frame_interval_ps", value, "0 with lossless classes"));
    }
    Ok(())
}

pub(super) fn read_receiving(
    keys: &mut Reader,
    fabric: &FabricConfiguration,
) -> Result<ReceivingConfiguration, ConfigurationError> {
    let mut time = |key, default| keys.number(key, default, 0, TIME_MAX_PS);
    let (segment_ps, reassemble_ps) = (time("segment_ps", 0)?, time("reassemble_ps", 0)?);
    let interrupts = match keys.word("receiving", "polling", &["polling", "interrupts"])?.as_str() {
        "interrupts" => Some(InterruptConfiguration {
            latency_ps: keys.number("interrupt_latency_ps", 2_000_000, 0, TIME_MAX_PS)?,
            cost_ps: keys.number("interrupt_ps", 1_000_000, 0, TIME_MAX_PS)?,
            coalesce_frames: keys.number("coalesce_frames", 1, 1, u32::MAX.into())? as u32,
            coalesce_ps: keys.number("coalesce_ps", 0, 0, TIME_MAX_PS)?,
        }),
        _ => None,
    };
    let frame_bytes = match fabric {
        FabricConfiguration::Ethernet(ethernet) => ethernet.mtu_bytes,
        FabricConfiguration::Flit(flit) => flit.ports.mtu_bytes,
        // The other fabrics do not divide messages. A worm, for example, carries a whole message.
        _ => u32::MAX,
    };
    Ok(ReceivingConfiguration { frame_bytes, segment_ps, reassemble_ps, interrupts })
}

/// Maximum jitter: 100 times the transmission time of a frame.
const JITTER_MAX_PERCENT: u64 = 10_000;
/// Maximum size of a buffer: one tebibyte.
pub(super) const BUFFER_MAX_BYTES: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::super::super::simulation::InTurns;
    use super::super::{Configuration, Watch};
    use super::*;

    fn refused(text: &str) -> String {
        Configuration::parse("a.toml", text).expect_err("it is wrong").to_string()
    }

    #[test]
    fn settings_of_queues_cards_and_interrupts_are_parsed() {
        let text = "[fabric]\nclasses = 3\nclass_by = \"size\"\nlossless = [0, 2]\npause_bytes = \
                    9000\necn_max_bytes = 40000\nrails = 2\nstriping = \"per_packet\"\nchoice = \
                    \"flowlet\"\n[host]\nreceiving = \"interrupts\"\ncoalesce_frames = 4\n";
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let FabricConfiguration::Ethernet(ethernet) = configuration.fabric else {
            panic!("Ethernet is the default");
        };
        assert_eq!((ethernet.queues.lossless, ethernet.queues.resume_bytes), (5, 4_500));
        assert_eq!(ethernet.queues.ecn_min_bytes, 40_000);
        assert_eq!(ethernet.nic.rails, 2);
        assert_eq!(configuration.receiving.interrupts.map(|how| how.coalesce_frames), Some(4));
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it is valid");
        assert_eq!(again.fabric, configuration.fabric);
        assert_eq!(again.receiving, configuration.receiving);
    }

    #[test]
    fn contradictory_settings_are_refused() {
        let text = refused("[fabric]\nlossless = [0]\nhost_frame_interval_ps = 9\n");
        assert!(text.contains("0 with lossless classes"), "{text}");
        assert!(refused("[fabric]\nlossless = [1]\n").contains("lossless"));
        assert!(refused("[fabric]\nnic_rate_bps = 5\n").contains("0 or from"));
    }

    #[test]
    fn only_ethernet_runs_are_divided_into_threads() {
        let run = |fabric: &str, threads: u32| {
            let text = format!(
                "[topology]\nkind = \"leaf_spine\"\n[fabric]\nkind = \"{fabric}\"\n[run]\nthreads \
                 = {threads}\n[workload]\nuntil_ps = 100000000\n"
            );
            Configuration::parse("a.toml", &text)
                .expect("it is valid")
                .run_watched(&InTurns, Watch::default())
        };
        let whole = run("ethernet", 1).expect("it ends");
        let divided = run("ethernet", 4).expect("it ends");
        assert_eq!(divided.hash, whole.hash);
        assert_eq!(divided.finished_ps, whole.finished_ps);
        assert_eq!(whole.finished_ps.iter().max(), Some(&whole.completed_ps));
        let refused = run("fluid", 2).expect_err("it cannot").to_string();
        assert!(refused.contains("fluid") && refused.contains("1 thread"), "{refused}");
        assert!(run("fluid", 1).is_ok());
    }
}
