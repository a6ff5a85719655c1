//! `ethernot report`: shows stored results.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use bench::results::{FORMAT, Results};
use clap::Args;

use crate::Failure;
use crate::bench_command::{table, write_html};
use crate::output::{is_standard_output, print};

/// Show stored results of `ethernot bench --json FILE`: as a table, or as a page with curves.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ethernot report results.json --html results.html\n  ethernot report results.json --json"
)]
pub(crate) struct Arguments {
    /// Results of `ethernot bench --json`; `-` for standard input
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
    /// Write a self-contained page with tables and curves
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Print the results as JSON, without the individual samples, instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.file.display();
    let text = if is_standard_output(&arguments.file) {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&arguments.file)
    };
    let text = text.map_err(|error| format!("read {name}: {error}"))?;
    let mut results: Results = serde_json::from_str(&text)
        .map_err(|error| format!("{name} is not a result of `ethernot bench --json`: {error}"))?;
    if results.format != FORMAT {
        let format = &results.format;
        return Err(format!(
            "{name} has format {format:?}, but this program reads {FORMAT:?}; measure again with \
             this version"
        )
        .into());
    }
    if let Some(path) = &arguments.html {
        write_html(&results, path)?;
    }
    if arguments.json {
        for measurement in &mut results.results {
            measurement.samples.clear();
        }
        print(&format!("{}\n", serde_json::to_string_pretty(&results)?))?;
    } else if arguments.html.is_none() {
        print(&table(&results))?;
    }
    Ok(())
}
