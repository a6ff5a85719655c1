//! Keys of the transport of model hosts.

use super::super::ethernet::{
    Congestion, DcqcnConfiguration, EthernetConfiguration, HomaConfiguration, Recovery,
    TransportConfiguration,
};
use super::super::topology::Topology;
use super::homa;
use super::reader::Reader;
use super::reference;
use super::units::Unit;
use super::{
    Configuration, ConfigurationError, FabricConfiguration, RATE_MAX_BPS, RATE_MIN_BPS, TIME_MAX_PS,
};

/// The configured transport: sender-driven, or receiver-driven (Homa), or none.
type Transports = (Option<TransportConfiguration>, Option<HomaConfiguration>);

/// Reads the transport's keys in `[host]`.
pub(super) fn read(
    keys: &mut Reader,
    fabric: &FabricConfiguration,
    topology: &Topology,
) -> Result<Transports, ConfigurationError> {
    let recoveries = ["none", "go_back_n", "selective_repeat", "homa"];
    let word = keys.word("transport", "none", &recoveries)?;
    let FabricConfiguration::Ethernet(ethernet) = fabric else {
        if word == "none" {
            return Ok((read_windows(keys, None)?, None));
        }
        let expected = "\"none\" on this fabric, or [fabric] kind = \"ethernet\"";
        return Err(keys.wrong_word("transport", &word, expected));
    };
    let recovery = match word.as_str() {
        "go_back_n" => Some(Recovery::GoBackN),
        "selective_repeat" => Some(Recovery::SelectiveRepeat),
        "homa" => return Ok((None, Some(homa::read(keys, topology, ethernet)?))),
        _ => None,
    };
    let losses = recovery.map(|recovery| read_losses(keys, recovery, ethernet)).transpose()?;
    Ok((read_windows(keys, losses)?, None))
}

/// Reads the keys of congestion control.
fn read_windows(
    keys: &mut Reader,
    losses: Option<TransportConfiguration>,
) -> Result<Option<TransportConfiguration>, ConfigurationError> {
    let most = losses.map_or(WINDOW_FRAMES, |losses| losses.window_frames.into());
    let word = keys.word("congestion", "fixed", &["fixed", "dctcp", "delay", "dcqcn"])?;
    let congestion = match word.as_str() {
        "dctcp" => Congestion::Dctcp {
            gain_ppm: keys.number("dctcp_gain_ppm", 62_500, 1, 1_000_000)? as u32,
        },
        "delay" => Congestion::Delay {
            target_ps: keys.number("target_delay_ps", 20_000_000, 1, TIME_MAX_PS)?,
            scaling_ps: keys.number("target_scaling_ps", 0, 0, TIME_MAX_PS)?,
            beta_percent: keys.number("delay_beta_percent", 80, 0, 100)? as u32,
            decrease_max_percent: keys.number("delay_decrease_max_percent", 50, 0, 100)? as u32,
        },
        "dcqcn" => Congestion::Dcqcn(read_dcqcn(keys)?),
        _ => Congestion::Fixed,
    };
    let initial_window_frames = match congestion {
        Congestion::Fixed | Congestion::Dcqcn(_) => most as u32,
        _ => keys.number("initial_window_frames", most.min(10), 1, most)? as u32,
    };
    // To list all keys, the module `reference` reads each word of `congestion` with defaults for
    // all other keys, although some words need another setting too. This check would make such a
    // reading fail, so it does not apply to these readings.
    if losses.is_none() && congestion != Congestion::Fixed && keys.file() != reference::FILE {
        let expected =
            "\"fixed\" without a transport; [host] transport = \"selective_repeat\" would do";
        return Err(keys.wrong_word("congestion", &word, expected));
    }
    let configuration =
        losses.map(|losses| TransportConfiguration { congestion, initial_window_frames, ..losses });
    Ok(configuration)
}

/// Reads the parameters of DCQCN. The defaults come from figure 14 of the paper. The figure lacks
/// two parameters: the hyper increase, whose default is five additive increases, and the minimum
/// rate.
fn read_dcqcn(keys: &mut Reader) -> Result<DcqcnConfiguration, ConfigurationError> {
    let gain_ppb = keys.number("dcqcn_gain_ppb", 3_906_250, 1, 1_000_000_000)? as u32;
    let recovery_steps = keys.number("dcqcn_recovery_steps", 5, 1, 1_000)? as u32;
    let mut time = |key, default, least| keys.number(key, default, least, DCQCN_TIME_MAX_PS);
    let notification_ps = time("dcqcn_notification_ps", 50_000_000, 0)?;
    let alpha_ps = time("dcqcn_alpha_ps", 55_000_000, TIMEOUT_MIN_PS)?;
    let timer_ps = time("dcqcn_timer_ps", 55_000_000, TIMEOUT_MIN_PS)?;
    let counter_bytes = keys.number("dcqcn_counter_bytes", 10_000_000, 1_000, COUNTER_MAX_BYTES)?;
    let mut rate = |key, default| keys.number(key, default, RATE_MIN_BPS, RATE_MAX_BPS);
    Ok(DcqcnConfiguration {
        gain_ppb,
        notification_ps,
        alpha_ps,
        timer_ps,
        counter_bytes,
        recovery_steps,
        additive_bps: rate("dcqcn_additive_bps", 40_000_000)?,
        hyper_bps: rate("dcqcn_hyper_bps", 200_000_000)?,
        min_bps: rate("dcqcn_min_bps", 100_000_000)?,
    })
}

/// Reads the keys of loss recovery, for a transport with a fixed window.
fn read_losses(
    keys: &mut Reader,
    recovery: Recovery,
    ethernet: &EthernetConfiguration,
) -> Result<TransportConfiguration, ConfigurationError> {
    let mut number = |key, default: u64, least, most| {
        keys.number(key, default, least, most).map(|number| number as u32)
    };
    let window_frames = number("window_frames", WINDOW_FRAMES, 1, WINDOW_MAX_FRAMES)?;
    let ack_bytes = number("ack_bytes", ACK_BYTES, 0, ethernet.mtu_bytes.into())?;
    let loss_threshold_frames = number("loss_threshold_frames", 1, 1, WINDOW_MAX_FRAMES)?;
    let loss_ppm = number("loss_ppm", 0, 0, LOSS_MAX_PPM)?;
    Ok(TransportConfiguration {
        recovery,
        congestion: Congestion::Fixed,
        window_frames,
        initial_window_frames: window_frames,
        ack_bytes,
        timeout_ps: keys.number("timeout_ps", 1_000_000_000, TIMEOUT_MIN_PS, TIMEOUT_MAX_PS)?,
        loss_threshold_frames,
        loss_ppm,
    })
}

impl Configuration {
    /// Rejects settings that the configured transport excludes.
    pub(super) fn check_transport(&self) -> Result<(), ConfigurationError> {
        let FabricConfiguration::Ethernet(ethernet) = &self.fabric else { return Ok(()) };
        if !ethernet.has_transport() {
            return Ok(());
        }
        let wrong = |key: &str, value: u64, expected: String| {
            Err(self.written.value("fabric", key, value.to_string(), expected))
        };
        if ethernet.nic.rails > 1 {
            let expected = "1 with a [host] transport; 1 would do".to_owned();
            return wrong("rails", ethernet.nic.rails.into(), expected);
        }
        let frame = u64::from(ethernet.frame_bytes_max());
        let queues = &ethernet.queues;
        let shared_min = frame.max((frame * 100).div_ceil(queues.alpha_percent.max(1).into()));
        for (key, bytes, least) in [
            ("buffer_bytes", ethernet.buffer_bytes, frame),
            ("shared_bytes", queues.shared_bytes, shared_min),
        ] {
            if bytes > 0 && bytes < least {
                let would_do = Unit::Size.quoted(least);
                let expected = format!(
                    "0 or at least {least}, because [host] transport would retransmit a dropped \
                     frame forever; {would_do} would do"
                );
                return wrong(key, bytes, expected);
            }
        }
        self.check_cables(ethernet)?;
        self.check_homa(ethernet)?;
        let word = match ethernet.transport.map(|transport| transport.congestion) {
            Some(Congestion::Dctcp { .. }) => "dctcp",
            Some(Congestion::Dcqcn(_)) => "dcqcn",
            Some(Congestion::Fixed | Congestion::Delay { .. }) | None => return Ok(()),
        };
        if queues.ecn_max_bytes == 0 {
            let expected = "\"fixed\" or \"delay\" if switches mark no frames; [fabric] \
                            ecn_max_bytes = \"100 kB\" would do";
            let value = format!("\"{word}\"");
            return Err(self.written.value("host", "congestion", value, expected.to_owned()));
        }
        Ok(())
    }
}

/// Default window, in frames. At 10 Gb/s and a round trip of 80 µs, a connection has 64 full frames
/// in flight.
const WINDOW_FRAMES: u64 = 64;
/// Default payload of an acknowledgement, in bytes: the length of the IP and TCP headers. This is
/// less than the smallest payload of a frame, so the frame of the acknowledgement has the minimum
/// length.
pub(super) const ACK_BYTES: u64 = 40;
/// Maximum window. The sequence numbers of the frames in flight must span far less than half of the
/// number space, because otherwise hosts could not order these numbers.
const WINDOW_MAX_FRAMES: u64 = 1 << 16;
/// Maximum rate of random losses: half of all frames. With more losses, timeouts would become
/// longer than runs.
pub(super) const LOSS_MAX_PPM: u64 = 500_000;
/// Maximum value of the times of DCQCN: one second.
const DCQCN_TIME_MAX_PS: u64 = 1_000_000_000_000;
/// Maximum value of DCQCN's byte counter: one tebibyte.
const COUNTER_MAX_BYTES: u64 = 1 << 40;
/// Minimum timeout: one microsecond. Real hosts do not check their timers more often.
pub(super) const TIMEOUT_MIN_PS: u64 = 1_000_000;
/// Maximum timeout: one second. After twenty doublings, this is two weeks of virtual time; a run
/// ends after two months.
pub(super) const TIMEOUT_MAX_PS: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::super::simulation::InTurns;
    use super::super::{Configuration, FabricConfiguration, Watch};
    use super::*;

    #[test]
    fn a_transport_configuration_parses_and_prints_back() {
        let text = "[host]\ntransport = \"go_back_n\"\ncongestion = \"delay\"\nwindow_frames = \
                    200\ntarget_delay_ps = \"30 us\"\nloss_ppm = 7\ntimeout_ps = \"100 us\"\n";
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let FabricConfiguration::Ethernet(ethernet) = configuration.fabric else {
            panic!("Ethernet is the default");
        };
        let expected = TransportConfiguration {
            recovery: Recovery::GoBackN,
            congestion: Congestion::Delay {
                target_ps: 30_000_000,
                scaling_ps: 0,
                beta_percent: 80,
                decrease_max_percent: 50,
            },
            window_frames: 200,
            initial_window_frames: 10,
            ack_bytes: 40,
            timeout_ps: 100_000_000,
            loss_threshold_frames: 1,
            loss_ppm: 7,
        };
        assert_eq!(ethernet.transport, Some(expected));
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it is valid");
        assert_eq!(again.fabric, configuration.fabric);
    }

    /// Runs an incast into a short queue with each transport, undivided and divided.
    #[test]
    fn lost_messages_arrive_with_a_transport_and_parts_agree() {
        for (transport, more) in [
            ("go_back_n", ""),
            ("selective_repeat", ""),
            ("selective_repeat", "congestion = \"delay\"\n"),
            ("selective_repeat", "congestion = \"dctcp\"\nloss_ppm = 1000\n"),
            ("go_back_n", "congestion = \"dctcp\"\nloss_ppm = 1000\n"),
            ("go_back_n", "congestion = \"dcqcn\"\n"),
            ("selective_repeat", "congestion = \"dcqcn\"\nloss_ppm = 1000\n"),
        ] {
            let marks = if more.contains("dc") { "ecn_max_bytes = 8000\n" } else { "" };
            let run = |threads: u32| {
                let text = format!(
                    "[topology]\nkind = \"leaf_spine\"\nhosts = 4\n[fabric]\nbuffer_bytes = \
                     20000\n{marks}[host]\ntransport = \"{transport}\"\n{more}[workload]\nkind = \
                     \"incast\"\nbytes = 30000\niterations = 5\n[run]\nthreads = {threads}\n"
                );
                let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
                configuration.run_watched(&InTurns, Watch::default()).expect("it ends")
            };
            let whole = run(1);
            let counts = whole.transport.expect("hosts have a transport");
            assert_eq!(whole.delivered, 5 * 15, "{transport} {more}");
            assert!(counts.retransmitted_frames > 0 && whole.dropped > 0, "{transport} {more}");
            for threads in [2, 4] {
                let divided = run(threads);
                assert_eq!(divided.hash, whole.hash, "{transport} {more}, {threads} parts");
                assert_eq!(divided.transport, whole.transport, "{transport} {more}");
            }
        }
    }
}
