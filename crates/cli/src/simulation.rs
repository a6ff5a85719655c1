//! Common parts of `ethernot sim run` and `sim goal`: observing a run, and writing its records.

mod diagnosis;
mod frame_file;
mod page;
mod progress;
mod record_file;
mod trace_file;

use frame_file::FrameFile;
use progress::RunProgress;

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use interconnect::configuration::{Configuration, ConfigurationError, Slowdowns, Watch};
use interconnect::records::RecordLimits;
use interconnect::simulation::{Outcome, Watcher};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{write_text, writing};

/// The files to write about a run.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Write each message: the times of posting, hand-over to the network, delivery and reception,
    /// and its slowdown against the empty network. `.csv`, `.json` or `.arrow`
    #[arg(long, value_name = "FILE", value_parser = record_file::parse_path)]
    messages: Option<PathBuf>,
    /// Write the traffic and the waits of each link. `.csv`, `.json` or `.arrow`
    #[arg(long, value_name = "FILE", value_parser = record_file::parse_path)]
    links: Option<PathBuf>,
    /// Write the queues of all links over time. `.csv`, `.json` or `.arrow`
    #[arg(long, value_name = "FILE", value_parser = record_file::parse_path)]
    queues: Option<PathBuf>,
    /// Write messages, computations and busy links as a timeline for Chrome or ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Highest number of spans in the timeline, the earliest first
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    trace_limit: usize,
    /// Write a self-contained page: latencies, heat map of the links, busiest links, critical path
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Report the waits and links that make up the completion time, and the saturated links
    #[arg(long)]
    why: bool,
    /// Report the slowdown of messages against the empty network
    #[arg(long)]
    slowdown: bool,
    /// Write a capture file for Wireshark with the frames of hosts that run the real engine. The
    /// file has each frame twice: when the sender sends it, and when the receiver gets it
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
    /// Write only frames of these hosts
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', requires = "pcapng")]
    pcapng_hosts: Vec<u32>,
    /// Highest number of frames written, the earliest first
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "pcapng")]
    pcapng_frames: u64,
    /// Highest number of recorded messages; the limit of recorded link crossings is four times as
    /// high
    #[arg(long, value_name = "N", default_value_t = RecordLimits::default().messages)]
    record_limit: usize,
}

/// A completed run, and its duration.
pub(crate) struct Finished {
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    /// The slowdowns of recorded messages, if requested.
    pub(crate) slowdowns: Option<Slowdowns>,
}

impl Finished {
    /// Returns the slowdown of messages as one line; empty if unknown.
    pub(crate) fn slowdown_summary(&self) -> String {
        let Some(slowdowns) = &self.slowdowns else { return String::new() };
        let quantile = |share| slowdowns.quantile(share);
        format!(
            "slowdown of {} messages: min {:.3}  mean {:.3}  median {:.3}  95 % {:.3}  99 % {:.3}  99.9 % \
             {:.3}  max {:.3}\n",
            slowdowns.count(),
            quantile(0.0),
            slowdowns.mean(),
            quantile(0.5),
            quantile(0.95),
            quantile(0.99),
            quantile(0.999),
            quantile(1.0),
        )
    }

    /// Returns the slowdown as JSON; null if unknown.
    pub(crate) fn slowdown_json(&self) -> Value {
        let Some(slowdowns) = &self.slowdowns else { return Value::Null };
        json!({
            "messages": slowdowns.count(),
            "min": slowdowns.quantile(0.0),
            "mean": slowdowns.mean(),
            "median": slowdowns.quantile(0.5),
            "p95": slowdowns.quantile(0.95),
            "p99": slowdowns.quantile(0.99),
            "p99_9": slowdowns.quantile(0.999),
            "max": slowdowns.quantile(1.0),
        })
    }
}

impl OutputArguments {
    /// Runs `run` with a progress bar. Records the run if a requested file needs it.
    pub(crate) fn watch(
        &self,
        configuration: &Configuration,
        run: impl FnOnce(Watch) -> Result<Outcome, ConfigurationError>,
    ) -> Result<Finished, Failure> {
        let is_recorded = self.why
            || self.slowdown
            || [&self.messages, &self.links, &self.queues, &self.trace, &self.html]
                .into_iter()
                .any(Option::is_some);
        let limits = RecordLimits {
            messages: self.record_limit,
            crossings: self.record_limit.saturating_mul(4),
        };
        let frames = self.frame_file(configuration)?;
        let mut progress = RunProgress::new();
        let watch = Watch {
            records: is_recorded.then_some(limits),
            progress: Some(&mut |report| {
                progress.update(report);
                ControlFlow::Continue(())
            }),
            tap: frames.as_ref().map(|frames| frames.tap(&self.pcapng_hosts)),
        };
        let outcome = run(watch);
        let seconds = progress.finish();
        // Writes the frames even if the run failed, because they may show the reason.
        if let Some(frames) = frames {
            let written = frames.finish()?;
            if written.left_out > 0 {
                eprintln!(
                    "ethernot: {} later frames were not captured; --pcapng-frames {} captures all",
                    written.left_out,
                    written.frames + written.left_out
                );
            }
        }
        let outcome = outcome?;
        let is_compared = self.slowdown || self.messages.is_some() || self.html.is_some();
        let records = outcome.records.as_deref().filter(|_| is_compared);
        let slowdowns = records
            .map(|records| with_progress(|watcher| configuration.slowdowns(records, watcher)))
            .transpose()?;
        Ok(Finished { outcome, seconds, slowdowns })
    }

    /// Returns the file for frames, if requested.
    fn frame_file(&self, configuration: &Configuration) -> Result<Option<FrameFile>, Failure> {
        let Some(path) = &self.pcapng else { return Ok(None) };
        let Some(edge) = &configuration.edge else {
            return Err(ConfigurationError::NoFrames.into());
        };
        let hosts = configuration.topology.hosts();
        if let Some(host) = self.pcapng_hosts.iter().find(|&&host| host >= hosts) {
            return Err(format!(
                "--pcapng-hosts: no host {host}; hosts have the numbers 0 to {}",
                hosts - 1
            )
            .into());
        }
        FrameFile::create(path, self.pcapng_frames, edge.sees_marks).map(Some)
    }

    /// Writes all requested files.
    pub(crate) fn write(
        &self,
        configuration: &Configuration,
        finished: &Finished,
    ) -> Result<(), Failure> {
        let Some(records) = finished.outcome.records.as_deref() else { return Ok(()) };
        let topology = &configuration.topology;
        if let Some(path) = &self.messages {
            record_file::write(path, &record_file::messages(records, finished.slowdowns.as_ref()))?;
        }
        if let Some(path) = &self.links {
            let rates = configuration.fabric.rates();
            record_file::write(path, &record_file::links(records, topology, rates))?;
        }
        if let Some(path) = &self.queues {
            record_file::write(path, &record_file::queues(records, topology))?;
        }
        if let Some(path) = &self.trace {
            let left_out =
                writing(path, |file| trace_file::write(file, records, topology, self.trace_limit))?;
            if left_out > 0 {
                eprintln!(
                    "ethernot: {}: {left_out} later spans were omitted; --trace-limit {} writes \
                     all",
                    path.display(),
                    self.trace_limit + left_out
                );
            }
        }
        if let Some(path) = &self.html {
            let page = page::page(configuration, finished, records)?;
            write_text(path, &page)?;
        }
        if records.left_out.messages + records.left_out.crossings > 0 && self.needs_all() {
            eprintln!(
                "ethernot: {} messages and {} crossings of links were not recorded; raise \
                 --record-limit above {}",
                records.left_out.messages, records.left_out.crossings, self.record_limit
            );
        }
        Ok(())
    }

    /// Returns the saturated links and, if requested, the causes of the completion time as text.
    pub(crate) fn diagnosis(&self, configuration: &Configuration, outcome: &Outcome) -> String {
        let mut text = String::new();
        if self.why
            && let Some(records) = &outcome.records
        {
            diagnosis::critical_path(&mut text, records, &configuration.topology);
        }
        for sentence in diagnosis::saturation(outcome, &configuration.topology) {
            text.push_str(&sentence);
            text.push('\n');
        }
        text
    }

    /// Returns the diagnosis as JSON.
    pub(crate) fn diagnosis_json(&self, configuration: &Configuration, outcome: &Outcome) -> Value {
        diagnosis::to_json(outcome, &configuration.topology, self.why)
    }

    const fn needs_all(&self) -> bool {
        self.messages.is_some() || self.trace.is_some() || self.html.is_some() || self.slowdown
    }
}

/// Calls `run`, and shows the progress that `run` reports in a progress bar.
pub(crate) fn with_progress<T>(run: impl FnOnce(&mut Watcher<'_>) -> T) -> T {
    let mut bar = RunProgress::new();
    let result = run(&mut |report| {
        bar.update(report);
        ControlFlow::Continue(())
    });
    bar.finish();
    result
}
