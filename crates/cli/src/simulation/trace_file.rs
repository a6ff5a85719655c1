//! Writes a run as a timeline in the Trace Event Format, for Chrome (`chrome://tracing`) and
//! Perfetto.
//!
//! Hosts and switches appear as processes. The outgoing links of a host or switch appear as its
//! threads. A thread has a span for each period in which packets of one message occupy the link. A
//! host also has a thread for its processor. Messages are asynchronous spans of the sending host,
//! because they overlap.

use std::io::{self, Write};

use interconnect::records::{Crossing, NEVER_PS, Records};
use interconnect::topology::Topology;

/// Writes at most `limit` spans, the earliest first. Returns the number of omitted spans.
pub(super) fn write(
    file: &mut dyn Write,
    records: &Records,
    topology: &Topology,
    limit: usize,
) -> io::Result<usize> {
    let mut spans = spans(records);
    spans.sort_unstable_by_key(|span| (span.from_ps, span.until_ps));
    let left_out = spans.len().saturating_sub(limit);
    spans.truncate(limit);
    let mut events = Events { file, is_first: true };
    events.file.write_all(b"{\"displayTimeUnit\": \"ns\", \"traceEvents\": [")?;
    names(&mut events, &spans, records, topology)?;
    for span in &spans {
        span.write(&mut events, records, topology)?;
    }
    events.file.write_all(b"\n]}\n")?;
    Ok(left_out)
}

#[derive(Clone, Copy)]
struct Span {
    from_ps: u64,
    until_ps: u64,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// A message, by its index.
    Message(u32),
    /// Work of a processor, by its index.
    Work(u32),
    /// A period in which a link is busy: indexes of link, channel and message, and the number of
    /// packets.
    Link(u32, u8, u32, u32),
}

fn spans(records: &Records) -> Vec<Span> {
    let messages =
        (0..).zip(&records.messages).filter(|(_, message)| message.delivered_ps != NEVER_PS);
    let mut spans: Vec<Span> = messages
        .map(|(index, message)| Span {
            from_ps: message.posted_ps,
            until_ps: message.delivered_ps,
            what: What::Message(index),
        })
        .collect();
    let works = (0..).zip(&records.works).filter(|(_, work)| !work.is_timer);
    spans.extend(works.map(|(index, work)| Span {
        from_ps: work.started_ps,
        until_ps: work.ended_ps,
        what: What::Work(index),
    }));
    spans.extend(link_spans(records));
    spans
}

/// Returns the spans in which packets of one message occupy a channel of a link without
/// interruption.
fn link_spans(records: &Records) -> Vec<Span> {
    let mut crossings: Vec<&Crossing> =
        records.crossings.iter().filter(|crossing| crossing.busy_until_ps > 0).collect();
    crossings.sort_unstable_by_key(|crossing| {
        (crossing.link, crossing.channel, crossing.started_ps, crossing.message)
    });
    let mut spans: Vec<Span> = Vec::new();
    for crossing in crossings {
        let Crossing { link, channel, message, started_ps, busy_until_ps, .. } = *crossing;
        // A longer gap than this between two frames ends a span.
        let gap_ps = (busy_until_ps - started_ps) / 50;
        if let Some(Span { until_ps, what: What::Link(a, b, c, packets), .. }) = spans.last_mut()
            && (*a, *b, *c) == (link, channel, message)
            && started_ps <= *until_ps + gap_ps
        {
            *until_ps = busy_until_ps;
            *packets += 1;
        } else {
            let what = What::Link(link, channel, message, 1);
            spans.push(Span { from_ps: started_ps, until_ps: busy_until_ps, what });
        }
    }
    spans
}

struct Events<'a> {
    file: &'a mut dyn Write,
    is_first: bool,
}

impl Events<'_> {
    /// Writes an event. Names of nodes and links contain no characters that JSON would escape.
    fn event(&mut self, text: std::fmt::Arguments) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { "," };
        write!(self.file, "{comma}\n{{{text}}}")
    }
}

/// Writes the names of the processes and threads.
fn names(
    events: &mut Events,
    spans: &[Span],
    records: &Records,
    topology: &Topology,
) -> io::Result<()> {
    let mut threads: Vec<(u32, u32, String)> = spans
        .iter()
        .map(|span| match span.what {
            What::Message(index) => {
                let host = records.messages.get(index as usize).map_or(0, |message| message.source);
                (host, 0, String::new())
            }
            What::Work(index) => {
                let rank = records.works.get(index as usize).map_or(0, |work| work.rank);
                (rank, PROCESSOR, "processor".to_owned())
            }
            What::Link(link, channel, ..) => {
                let node = topology.link(link).map_or(0, |link| link.from);
                let lane = if channel > 0 { format!(" channel {channel}") } else { String::new() };
                (node, thread(link, channel), format!("{}{lane}", topology.link_name(link)))
            }
        })
        .collect();
    threads.sort_unstable();
    threads.dedup();
    let mut last = None;
    for (node, thread, name) in threads {
        if last.replace(node) != Some(node) {
            events.event(format_args!(
                "\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {node}, \"args\": {{\"name\": \
                 \"{}\"}}",
                topology.node_name(node)
            ))?;
            events.event(format_args!(
                "\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": {node}, \"args\": \
                 {{\"sort_index\": {node}}}"
            ))?;
        }
        if !name.is_empty() {
            events.event(format_args!(
                "\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {node}, \"tid\": {thread}, \
                 \"args\": {{\"name\": \"{name}\"}}"
            ))?;
        }
    }
    Ok(())
}

impl Span {
    fn write(&self, events: &mut Events, records: &Records, topology: &Topology) -> io::Result<()> {
        // The format's unit is microseconds.
        let (at, duration) =
            (self.from_ps as f64 * 1e-6, (self.until_ps - self.from_ps) as f64 * 1e-6);
        match self.what {
            What::Message(index) => {
                let Some(message) = records.messages.get(index as usize) else { return Ok(()) };
                let (source, destination, bytes) =
                    (message.source, message.destination, message.bytes);
                let name = format!("to {}", topology.node_name(destination));
                events.event(format_args!(
                    "\"ph\": \"b\", \"cat\": \"message\", \"id\": {index}, \"name\": \"{name}\", \
                     \"pid\": {source}, \"tid\": 0, \"ts\": {at:.6}, \"args\": {{\"bytes\": {bytes}, \
                     \"tag\": {}}}",
                    message.tag
                ))?;
                events.event(format_args!(
                    "\"ph\": \"e\", \"cat\": \"message\", \"id\": {index}, \"name\": \"{name}\", \
                     \"pid\": {source}, \"tid\": 0, \"ts\": {:.6}",
                    at + duration
                ))
            }
            What::Work(index) => {
                let rank = records.works.get(index as usize).map_or(0, |work| work.rank);
                events.event(format_args!(
                    "\"ph\": \"X\", \"name\": \"compute\", \"pid\": {rank}, \"tid\": {PROCESSOR}, \
                     \"ts\": {at:.6}, \"dur\": {duration:.6}"
                ))
            }
            What::Link(link, channel, index, packets) => {
                let Some(message) = records.messages.get(index as usize) else { return Ok(()) };
                let node = topology.link(link).map_or(0, |link| link.from);
                events.event(format_args!(
                    "\"ph\": \"X\", \"name\": \"h{} to h{}\", \"pid\": {node}, \"tid\": {}, \"ts\": \
                     {at:.6}, \"dur\": {duration:.6}, \"args\": {{\"message\": {index}, \"packets\": \
                     {packets}}}",
                    message.source,
                    message.destination,
                    thread(link, channel)
                ))
            }
        }
    }
}

/// Returns the thread number of a channel. Thread 0 has the messages, thread 1 the processor.
const fn thread(link: u32, channel: u8) -> u32 {
    2 + link * 16 + channel as u32
}

const PROCESSOR: u32 = 1;

#[cfg(test)]
mod tests {
    use interconnect::configuration::{Configuration, Watch};
    use interconnect::records::RecordLimits;
    use serde_json::Value;

    use interconnect::simulation::InTurns;

    use super::*;

    fn trace(limit: usize) -> (Value, usize) {
        let text =
            "[topology]\nhosts = 4\n[workload]\nkind = \"mesh\"\niterations = 2\nbytes = 5000\n";
        let configuration = Configuration::parse("a.toml", text).unwrap();
        let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
        let outcome = configuration.run_watched(&InTurns, watch).unwrap();
        let records = outcome.records.unwrap();
        let mut json = Vec::new();
        let left_out = write(&mut json, &records, &configuration.topology, limit).unwrap();
        (serde_json::from_slice(&json).unwrap(), left_out)
    }

    fn of_phase<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["ph"] == *phase).collect()
    }

    #[test]
    fn the_trace_is_json_with_a_span_for_each_message_and_busy_link_time() {
        let (trace, left_out) = trace(usize::MAX);
        assert_eq!(left_out, 0);
        assert_eq!(of_phase(&trace, "b").len(), 4 * 4 * 2);
        assert_eq!(of_phase(&trace, "e").len(), 4 * 4 * 2);
        let computations = |event: &&&Value| event["name"] == "compute";
        assert_eq!(of_phase(&trace, "X").iter().filter(computations).count(), 4 * 2);
    }

    #[test]
    fn spans_of_a_thread_do_not_overlap() {
        let (trace, _) = trace(usize::MAX);
        let mut spans: Vec<(u64, u64, f64, f64)> = of_phase(&trace, "X")
            .into_iter()
            .map(|event| {
                let number = |name: &str| event[name].as_f64().unwrap();
                let (process, thread) = (event["pid"].as_u64(), event["tid"].as_u64());
                (process.unwrap(), thread.unwrap(), number("ts"), number("dur"))
            })
            .collect();
        spans.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        for pair in spans.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let is_same = (before.0, before.1) == (after.0, after.1);
            assert!(!is_same || before.2 + before.3 <= after.2 + 1e-6, "{before:?} {after:?}");
        }
    }

    #[test]
    fn the_limit_bounds_the_trace_and_omitted_spans_are_reported() {
        let (all, _) = trace(usize::MAX);
        let spans = |trace: &Value| of_phase(trace, "b").len() + of_phase(trace, "X").len();
        let (few, left_out) = trace(20);
        assert_eq!(spans(&few), 20);
        assert_eq!(left_out, spans(&all) - 20);
    }
}
