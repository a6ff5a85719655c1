//! Problems that prevent the links of an endpoint from following their interfaces.

use std::error::Error;
use std::fmt;

use crate::error::BindError;
use crate::spec::LinkSpec;

/// The reason why the endpoint could not open a link that the program wants.
///
/// The endpoint tries to open the link again when an interface changes, and every second.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct LinkProblem {
    /// The link; `None` if the problem concerns all links.
    pub link: Option<LinkSpec>,
    /// The error and its causes.
    pub message: String,
}

impl LinkProblem {
    pub(crate) fn new(link: Option<&LinkSpec>, error: &BindError) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            // The text of a transparent error is the text of its source. Do not repeat that text.
            let text = error.to_string();
            if !message.ends_with(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self { link: link.cloned(), message }
    }
}

impl fmt::Display for LinkProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.link {
            Some(link) => write!(f, "link {link}: {}", self.message),
            None => write!(f, "links do not follow their interfaces: {}", self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_error_names_its_cause() {
        let cause = io::Error::other("no buffer space");
        let problem = LinkProblem::new(None, &BindError::Interfaces(cause));
        assert!(problem.to_string().ends_with("rtnetlink sockets: no buffer space"), "{problem}");
        let link: LinkSpec = "packet:eth1".parse().unwrap();
        let problem = LinkProblem::new(Some(&link), &BindError::NoUsableInterface);
        assert!(problem.to_string().starts_with("link packet:eth1: no interface"), "{problem}");
    }
}
