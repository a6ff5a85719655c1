//! The interface and source address that the kernel would use to reach a peer.

use std::io;
use std::net::IpAddr;

use super::interfaces::ip;
use crate::netlink::{Socket, attributes, put_attribute, u32_at};

/// The route to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// Number of the outgoing interface.
    pub interface: u32,
    /// The source address, if the kernel prefers one.
    pub source: Option<IpAddr>,
    /// The first router; `None` if the destination is on the interface's own network.
    pub gateway: Option<IpAddr>,
}

/// Looks up the route that the kernel would use now to reach `to`. Returns `None` if there is no
/// route.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn route_to(to: IpAddr) -> io::Result<Option<Route>> {
    let to = to.to_canonical();
    let (family, bits) = match to {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    // The request is a `struct rtmsg`: family and prefix length of the destination, then zeroes.
    let mut body = vec![0; RTMSG_BYTES];
    if let Some(head) = body.first_chunk_mut() {
        *head = [family as u8, bits];
    }
    match to {
        IpAddr::V4(to) => put_attribute(&mut body, libc::RTA_DST, &to.octets()),
        IpAddr::V6(to) => put_attribute(&mut body, libc::RTA_DST, &to.octets()),
    }
    let mut route = None;
    let asked = Socket::route(0)?.ask(libc::RTM_GETROUTE, 0, &body, &mut |body: &[u8]| {
        route = parse(body);
    });
    match asked {
        Ok(()) => Ok(route),
        Err(error) if is_no_route(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_no_route(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::ENETDOWN
                | libc::EAFNOSUPPORT
        )
    )
}

/// Parses an `RTM_NEWROUTE`.
fn parse(body: &[u8]) -> Option<Route> {
    let family = *body.first()?;
    let (mut interface, mut source, mut gateway) = (None, None, None);
    for (kind, content) in attributes(body.get(RTMSG_BYTES..)?) {
        match kind {
            libc::RTA_OIF => interface = u32_at(content, 0),
            libc::RTA_PREFSRC => source = ip(family, content),
            libc::RTA_GATEWAY => gateway = ip(family, content),
            _ => {}
        }
    }
    Some(Route { interface: interface?, source, gateway })
}

/// Size of `struct rtmsg`.
const RTMSG_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_this_host_is_the_loopback_interface() {
        let route = route_to("127.0.0.1".parse().unwrap()).unwrap().unwrap();
        let all = super::super::interfaces().unwrap();
        let interface = all.iter().find(|interface| interface.index == route.interface).unwrap();
        assert!(interface.is_loopback);
        assert_eq!(route.gateway, None);
    }
}
