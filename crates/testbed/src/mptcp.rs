//! The kernel's Multipath TCP: whether this host supports it, and the set-up of a path over each
//! link.

use std::fs;

use crate::namespace::{NamespaceError, ip};
use crate::pair::NamespacePair;

/// Returns the reason why this host does not support MPTCP; `None` if it does.
pub fn why_not() -> Option<String> {
    match fs::read_to_string(ENABLED) {
        Ok(text) if text.trim() == "1" => {}
        Ok(_) => return Some(format!("{ENABLED} is not 1")),
        Err(error) => return Some(format!("the kernel has no MPTCP: {ENABLED}: {error}")),
    }
    ip(&["mptcp", "limits", "show"]).err().map(|error| error.to_string())
}

/// Lets connections between the hosts of `pair` use all links. The server announces its further
/// addresses, and the client connects to each.
///
/// # Errors
/// Returns [`NamespaceError`]; each variant names one cause.
pub fn use_all_links(pair: &NamespacePair) -> Result<(), NamespaceError> {
    for host in [pair.client(), pair.server()] {
        let limits =
            ["mptcp", "limits", "set", "subflows", PATHS_MAX, "add_addr_accepted", PATHS_MAX];
        ip(&[&["-n", host][..], &limits].concat())?;
    }
    for (number, link) in (1..).zip(pair.links()).skip(1) {
        let (address, interface) = (link.server.to_string(), format!("link{number}"));
        let endpoint = ["mptcp", "endpoint", "add", &address, "dev", &interface, "signal"];
        ip(&[&["-n", pair.server()][..], &endpoint].concat())?;
    }
    Ok(())
}

/// The kernel's setting that enables MPTCP.
const ENABLED: &str = "/proc/sys/net/mptcp/enabled";

/// Highest number of additional paths that the kernel permits.
const PATHS_MAX: &str = "8";
