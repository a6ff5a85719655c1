//! Names of links as arguments.

use ethernot::{Endpoint, LinkSpec};

use crate::Failure;

/// Names of links in the form that other processes accept.
#[derive(Clone, Debug)]
pub(crate) struct LinkNames(pub(crate) Vec<String>);

/// A number of links, or their names.
#[derive(Clone, Debug)]
pub(crate) enum Links {
    Count(u32),
    Named(LinkNames),
}

/// Parses names of links, so that a command reports invalid names before it starts anything.
pub(crate) fn parse_links(text: &str) -> Result<LinkNames, String> {
    let specs = LinkSpec::parse_list(text).map_err(|error| error.to_string())?;
    Ok(LinkNames(specs.iter().map(ToString::to_string).collect()))
}

/// Parses a number of links, or a list of their names.
pub(crate) fn parse_count_or_links(text: &str) -> Result<Links, String> {
    match text.parse() {
        Ok(count) => Ok(Links::Count(count)),
        Err(_) => parse_links(text).map(Links::Named),
    }
}

/// Makes the links and drops them, so that errors are reported now and not at the first use.
pub(crate) fn try_links(names: &[String]) -> Result<(), Failure> {
    if names.is_empty() {
        return Ok(());
    }
    let builder = Endpoint::builder().links(names.join(",")).follow_interfaces(false);
    match builder.progress_thread(false).build() {
        Ok(_made) => Ok(()),
        Err(error) => Err(Box::new(error)),
    }
}
