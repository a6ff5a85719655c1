//! Reads the keys of hosts with the real engine, and of outages of the network between them.

use toml::Table;

use super::super::edge::{
    EdgeConfiguration, EdgeCosts, OPERATION_BYTES_MAX, Order, Outage, POSTED_MAX, PayloadKind,
    Protocol, RAILS_MAX, RECEIVE_QUEUE_MAX, SEGMENTS_MAX, WINDOW_MAX,
};
use super::super::ethernet::{ClassBy, EthernetConfiguration, NicConfiguration};
use super::super::receiving::ReceivingConfiguration;
use super::reader::Reader;
use super::reference::Key;
use super::{BYTE_TIME_MAX_PS, BYTES_MAX, ConfigurationError, FabricConfiguration, TIME_MAX_PS};

/// Reads the engine's keys in `[host]`, if the kind of the hosts is `edge`.
pub(super) fn read(
    keys: &mut Reader,
    fabric: &FabricConfiguration,
) -> Result<Option<EdgeConfiguration>, ConfigurationError> {
    if keys.word("kind", "model", &["model", "edge"])? == "model" {
        return Ok(None);
    }
    let FabricConfiguration::Ethernet(ethernet) = fabric else {
        let expected = "\"model\" on this fabric, or [fabric] kind = \"ethernet\"";
        return Err(keys.wrong_word("kind", "edge", expected));
    };
    let default = EdgeConfiguration::default();
    let protocol = match keys.word("protocol", "edge", &["edge", "multiedge"])?.as_str() {
        "multiedge" => Protocol::MultiEdge,
        _ => Protocol::Edge,
    };
    let order = match keys.word("order", "relaxed", &["relaxed", "fenced", "strict"])?.as_str() {
        "fenced" => Order { is_fenced: true, is_strict: false },
        "strict" => Order { is_fenced: false, is_strict: true },
        _ => Order::default(),
    };
    let payload = match keys.word("payload", "ghost", &["ghost", "bytes"])?.as_str() {
        "bytes" => PayloadKind::Bytes,
        _ => PayloadKind::Ghost,
    };
    let sees_marks = keys.flag("ecn", default.sees_marks)?;
    let offloads = keys.flag("offloads", sees_marks)?;
    let envelope_default = if sees_marks { DATAGRAM_BYTES } else { default.envelope_bytes };
    let mut number = |key, default: u32, least, most| {
        keys.number(key, default.into(), least, most).map(|number| number as u32)
    };
    let rails = number("rails", default.rails.into(), 1, RAILS_MAX)? as u8;
    let operation_bytes =
        number("operation_bytes", default.operation_bytes, 1, OPERATION_BYTES_MAX.into())?;
    let window = number("window", default.window, 1, WINDOW_MAX.into())?;
    let operations = number("operations", default.operations, 1, POSTED_MAX.into())?;
    let envelope_bytes = number("envelope_bytes", envelope_default, 0, 64)?;
    let segments = number("segments", default.segments.into(), 1, SEGMENTS_MAX.into())? as u16;
    let transmit_queue_frames =
        number("transmit_queue_frames", default.transmit_queue_frames, 1, BYTES_MAX)?;
    let receive_queue_frames =
        number("receive_queue_frames", default.receive_queue_frames, 1, RECEIVE_QUEUE_MAX.into())?;
    let loss_ppm = number("loss_ppm", 0, 0, 1_000_000)?;
    let interrupt_interval_ps = keys.number("interrupt_interval_ps", 0, 0, TIME_MAX_PS)?;
    Ok(Some(EdgeConfiguration {
        rails,
        protocol,
        operation_bytes,
        window,
        operations,
        order,
        envelope_bytes,
        segments,
        offloads,
        transmit_queue_frames,
        receive_queue_frames,
        interrupt_interval_ps,
        sees_marks,
        payload,
        costs: read_costs(keys)?,
        loss_ppm,
        outages: Vec::new(),
        rate_bps: ethernet.host_rate_bps,
        connects_ahead: keys.flag("connects_ahead", default.connects_ahead)?,
    }))
}

/// Rejects settings of the host model that the real engine replaces.
pub(super) fn check(
    host: &Reader,
    fabric: &Reader,
    network: &FabricConfiguration,
    receiving: &ReceivingConfiguration,
) -> Result<(), ConfigurationError> {
    let with_engines = |instead: &str| format!("{instead} with [host] kind = \"edge\"");
    if receiving.interrupts.is_some() {
        let expected = with_engines("polling (see interrupt_interval_ps)");
        return Err(host.wrong_word("receiving", "interrupts", &expected));
    }
    for (key, value) in
        [("segment_ps", receiving.segment_ps), ("reassemble_ps", receiving.reassemble_ps)]
    {
        if value > 0 {
            let expected = with_engines("0 (see frame_send_ps and frame_receive_ps)");
            return Err(host.wrong_number(key, value, &expected));
        }
    }
    let FabricConfiguration::Ethernet(EthernetConfiguration { nic, queues, .. }) = network else {
        return Ok(());
    };
    let single = NicConfiguration::SINGLE;
    for (key, value, only) in [
        ("rails", nic.rails.into(), u64::from(single.rails)),
        ("nic_rate_bps", nic.rate_bps, single.rate_bps),
        ("nic_frame_interval_ps", nic.frame_interval_ps, single.frame_interval_ps),
    ] {
        if value != only {
            let expected = with_engines(&format!("{only} (rails are those of [host])"));
            return Err(fabric.wrong_number(key, value, &expected));
        }
    }
    // The engine's frames contain neither the tag of a message nor its workload. Therefore switches
    // cannot classify frames by tag or workload.
    let unknown = match queues.class_by {
        ClassBy::Tag => Some("tag"),
        ClassBy::Workload => Some("workload"),
        ClassBy::Source | ClassBy::Size { .. } => None,
    };
    if let Some(word) = unknown.filter(|_| queues.classes > 1) {
        return Err(fabric.wrong_word("class_by", word, &with_engines("source or size")));
    }
    Ok(())
}

fn read_costs(keys: &mut Reader) -> Result<EdgeCosts, ConfigurationError> {
    let mut time = |key, most| keys.number(key, 0, 0, most);
    Ok(EdgeCosts {
        frame_send_ps: time("frame_send_ps", TIME_MAX_PS)?,
        frame_send_ps_per_byte: time("frame_send_ps_per_byte", BYTE_TIME_MAX_PS)?,
        frame_receive_ps: time("frame_receive_ps", TIME_MAX_PS)?,
        frame_receive_ps_per_byte: time("frame_receive_ps_per_byte", BYTE_TIME_MAX_PS)?,
        post_ps: time("post_ps", TIME_MAX_PS)?,
        completion_ps: time("completion_ps", TIME_MAX_PS)?,
    })
}

/// Removes the sections `[[outage]]` from the root table and returns them.
pub(super) fn outage_tables(
    file: &str,
    root: &mut Table,
) -> Result<Vec<Reader>, ConfigurationError> {
    Reader::sections(file, root, "outage")
}

/// Reads outages. Returns them, their text in the effective configuration, and their keys.
pub(super) fn read_outages(
    sections: Vec<Reader>,
    has_engines: bool,
) -> Result<(Vec<Outage>, String, Vec<Key>), ConfigurationError> {
    let (mut outages, mut effective, mut known) = (Vec::new(), String::new(), Vec::new());
    for mut keys in sections {
        if !has_engines {
            let place = keys.text("place", "s0")?;
            let expected =
                "absent, or [host] kind = \"edge\": only hosts with the real engine detect outages";
            return Err(keys.wrong_word("place", &place, expected));
        }
        let from_ps = keys.number("from_ps", 0, 0, TIME_MAX_PS)?;
        outages.push(Outage {
            rail: keys.number("rail", 0, 0, RAILS_MAX - 1)? as u8,
            place: keys.text("place", "s0")?,
            from_ps,
            until_ps: keys.number("until_ps", TIME_MAX_PS, from_ps, TIME_MAX_PS)?,
            is_silent: keys.flag("is_silent", false)?,
        });
        let (text, keys) = keys.finish()?;
        effective.push_str(&text);
        known = keys;
    }
    Ok((outages, effective, known))
}

/// Length of the headers of a datagram: IPv4 and UDP.
const DATAGRAM_BYTES: u32 = 20 + 8;

#[cfg(test)]
mod tests {
    use super::super::super::records::{LinkRecord, MessageRecord, RecordLimits, StepKind};
    use super::super::super::simulation::{InTurns, Outcome};
    use super::super::{Configuration, Watch};

    const HOSTS: &str = "[host]\nkind = \"edge\"\n";

    #[test]
    fn settings_that_engines_replace_are_refused() {
        for (text, key) in [
            ("receiving = \"interrupts\"\n", "receiving"),
            ("segment_ps = 1\n", "segment_ps"),
            ("reassemble_ps = 1\n", "reassemble_ps"),
            ("[fabric]\nrails = 2\n", "rails"),
            ("[fabric]\nnic_rate_bps = 1_000_000_000\n", "nic_rate_bps"),
            ("[fabric]\nnic_frame_interval_ps = 5\n", "nic_frame_interval_ps"),
            ("[fabric]\nclasses = 2\n", "class_by"),
        ] {
            let text = format!("{HOSTS}{text}");
            let error = Configuration::parse("a.toml", &text).expect_err("it is wrong").to_string();
            assert!(error.contains(key) && error.contains("kind = \"edge\""), "{error}");
        }
    }

    fn run(text: &str, watch: Watch) -> Result<Outcome, String> {
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        configuration.run_watched(&InTurns, watch).map_err(|error| error.to_string())
    }

    fn recorded(text: &str) -> Outcome {
        let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
        run(text, watch).expect("it ends")
    }

    #[test]
    fn runs_with_engines_are_not_divided() {
        let text =
            format!("{HOSTS}[workload]\nkind = \"ring\"\niterations = 1\n[run]\nthreads = 2\n");
        let divided = run(&text, Watch::default()).expect_err("it cannot");
        assert!(divided.contains("edge runs on 1 thread, not on 2"), "{divided}");
        let outcome = run(&text.replace("threads = 2", "threads = 1"), Watch::default());
        assert!(outcome.expect("it ends").engines.is_some_and(|counts| counts.operations > 0));
    }

    #[test]
    fn recording_engines_changes_no_result_and_explains_the_whole_run() {
        for workload in
            ["kind = \"all_reduce\"\nbytes = 300_000\n", "kind = \"incast\"\nbytes = 9000\n"]
        {
            let text = format!(
                "{HOSTS}rails = 2\nframe_receive_ps = 300_000\nloss_ppm = 1000\nconnects_ahead = \
                 false\n[topology]\nhosts = 4\n[workload]\niterations = 2\n{workload}"
            );
            let plain = run(&text, Watch::default()).expect("it ends");
            let outcome = recorded(&text);
            assert_eq!((outcome.hash, outcome.events), (plain.hash, plain.events));
            let records = outcome.records.expect("it was recorded");
            let path = records.critical_path().expect("all was kept");
            let mut at_ps = 0;
            for step in &path.steps {
                assert_eq!(step.from_ps, at_ps, "{step:?}");
                at_ps = step.until_ps;
            }
            assert_eq!(at_ps, outcome.completed_ps);
            let kinds: Vec<StepKind> = path.by_kind().into_iter().map(|(kind, _)| kind).collect();
            assert!(kinds.contains(&StepKind::Engine), "{kinds:?}");
            assert!(kinds.contains(&StepKind::Serialisation), "{kinds:?}");
            assert!(!kinds.contains(&StepKind::Network), "{kinds:?}");
            for message in &records.messages {
                let MessageRecord { posted_ps, started_ps, delivered_ps, .. } = *message;
                assert!(posted_ps <= started_ps && started_ps < delivered_ps, "{message:?}");
                assert!(records.link_wait_ps(message).is_some(), "{message:?}");
            }
        }
    }

    /// While a host's link is busy with earlier frames, the waiting time of a frame counts as
    /// serialisation. It does not count as engine time.
    #[test]
    fn time_on_a_busy_host_link_counts_as_serialisation() {
        let text = format!(
            "{HOSTS}[topology]\nhosts = 2\n[workload]\nkind = \"broadcast\"\nbytes = 5_000_000\n\
             iterations = 1\n"
        );
        let outcome = recorded(&text);
        let path = outcome.records.expect("it was recorded").critical_path().expect("all was kept");
        let (most, share) = path.by_kind()[0];
        assert_eq!(most, StepKind::Serialisation);
        // 5 MB at 10 Gb/s take 4 ms. The total is longer, because windows are small at the start.
        assert!(share.total_ps > 4_000_000_000, "{share:?} of {}", outcome.completed_ps);
    }

    /// Each frame crosses two cables on one rail: the sender's and the receiver's.
    #[test]
    fn recorded_links_carry_what_engines_send() {
        let text = format!(
            "{HOSTS}rails = 2\n[topology]\nhosts = 3\n[workload]\nkind = \"all_to_all\"\nbytes = \
             200_000\n"
        );
        let outcome = recorded(&text);
        let records = outcome.records.expect("it was recorded");
        assert_eq!(records.links.len(), 2 * 6);
        let packets = |links: &[LinkRecord]| links.iter().map(|link| link.packets).sum::<u64>();
        let sent = outcome.engines.expect("hosts have engines").frames_sent;
        assert_eq!(packets(&records.links), 2 * sent);
        assert!(records.links.chunks(6).all(|rail| packets(rail) > sent / 4));
        assert_eq!(outcome.hops, 2 * sent);
        assert!(records.messages.iter().all(|message| message.last_crossing.is_some()));
    }
}
