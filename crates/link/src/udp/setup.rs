//! Sets up the sockets of a link.

use std::io;
use std::os::fd::BorrowedFd;

use super::address::Family;
use super::config::{UdpConfig, UdpFeatures};
use super::control::ECN_CAPABLE;
use super::socket;

/// Sets the options that never change. Disables the features that the kernel lacks, and returns
/// their number.
pub(super) fn set_options(
    socket: BorrowedFd<'_>,
    family: Family,
    features: &mut UdpFeatures,
) -> io::Result<u32> {
    let is_v6 = family == Family::V6;
    let ip = |name, value| socket::set_option(socket, libc::IPPROTO_IP, name, value);
    let ipv6 = |name, value| {
        if is_v6 { socket::set_option(socket, libc::IPPROTO_IPV6, name, value) } else { Ok(()) }
    };
    let level = |name, value| socket::set_option(socket, libc::SOL_SOCKET, name, value);

    // Forbid fragmentation, because the engine discovers path MTUs itself. A socket for both
    // families needs the options of both levels.
    ip(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    ipv6(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;

    let mut fallbacks = 0;
    let mut attempt = |wanted: &mut bool, set: &dyn Fn() -> io::Result<()>| {
        if *wanted && set().is_err() {
            *wanted = false;
            fallbacks += 1;
        }
    };
    attempt(&mut features.congestion_marks, &|| {
        ip(libc::IP_TOS, ECN_CAPABLE)?;
        ip(libc::IP_RECVTOS, 1)?;
        ipv6(libc::IPV6_TCLASS, ECN_CAPABLE)?;
        ipv6(libc::IPV6_RECVTCLASS, 1)
    });
    attempt(&mut features.error_queue, &|| {
        ip(libc::IP_RECVERR, 1)?;
        ipv6(libc::IPV6_RECVERR, 1)
    });
    attempt(&mut features.timestamps, &|| level(libc::SO_TIMESTAMPNS, 1));
    attempt(&mut features.drop_count, &|| level(libc::SO_RXQ_OVFL, 1));
    attempt(&mut features.coalescing, &|| {
        socket::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
    });
    // Reading the default segment size, 0, shows whether the kernel supports segmentation.
    attempt(&mut features.segmentation, &|| {
        socket::option(socket, libc::SOL_UDP, libc::UDP_SEGMENT).map(|_| ())
    });
    Ok(fallbacks)
}

/// Requests buffers and returns the number of frame bytes that the receive buffer reliably holds.
///
/// The kernel doubles the requested size. Each frame takes as much of the buffer as it occupies in
/// memory: up to 4352 bytes for a frame of 1472 bytes (a page and the descriptor). So frames take
/// only a third of the buffer. After frames were read, the kernel frees their part of the buffer in
/// steps of up to a quarter of the buffer. So only three quarters of the buffer are reliably
/// available. The result is 2 · 1/3 · 3/4 = 1/2 of the requested size. Coalesced frames need less
/// memory.
pub(super) fn size_buffers(
    socket: BorrowedFd<'_>,
    config: &UdpConfig,
    features: &mut UdpFeatures,
    hints: &mut Vec<String>,
) -> io::Result<u32> {
    ask_for_buffers(socket, config, features)?;
    let granted = |name| {
        let bytes = socket::option(socket, libc::SOL_SOCKET, name)?;
        Ok::<u32, io::Error>(u32::try_from(bytes).unwrap_or(0))
    };
    let (receive, send) = (granted(libc::SO_RCVBUF)?, granted(libc::SO_SNDBUF)?);
    let mut hint = |what, granted: u32, asked: u32, limit| {
        if granted / 2 < asked {
            hints.push(format!(
                "The kernel limits the {what} buffer to {} of {asked} bytes; raise the limit with \
                 `sysctl -w {limit}={asked}`.",
                granted / 2
            ));
        }
    };
    hint("receive", receive, config.receive_buffer_bytes, "net.core.rmem_max");
    hint("send", send, config.send_buffer_bytes, "net.core.wmem_max");
    Ok(receive / 4)
}

/// Requests the buffers; the kernel may grant less.
pub(super) fn ask_for_buffers(
    socket: BorrowedFd<'_>,
    config: &UdpConfig,
    features: &mut UdpFeatures,
) -> io::Result<()> {
    let mut size = |bytes: u32, force, ask| {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        if features.forced_buffers {
            if socket::set_option(socket, libc::SOL_SOCKET, force, bytes).is_ok() {
                return Ok(());
            }
            features.forced_buffers = false;
        }
        socket::set_option(socket, libc::SOL_SOCKET, ask, bytes)
    };
    size(config.receive_buffer_bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
    size(config.send_buffer_bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
}

/// Returns the largest frame size of an interface and its safe size, which needs no path-MTU probe,
/// in bytes.
pub(super) fn frame_sizes(
    mtu_bytes: u32,
    is_loopback: bool,
    family: Family,
    bound: u16,
) -> (u16, u16) {
    let carried = mtu_bytes.saturating_sub(family.header_bytes());
    let max = u16::try_from(carried).unwrap_or(u16::MAX).min(bound);
    let safe = if is_loopback {
        max
    } else if mtu_bytes >= 1500 {
        max.min((1500 - family.header_bytes()) as u16)
    } else {
        max.min(FRAME_BYTES_SAFE)
    };
    (max, safe)
}

/// Frame size that nearly every path carries if the interface's MTU is below 1500, in bytes (RFC
/// 9000, section 14: 1200).
const FRAME_BYTES_SAFE: u16 = 1200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_sizes_follow_the_mtu() {
        assert_eq!(frame_sizes(65_536, true, Family::V4, 9200), (9200, 9200));
        assert_eq!(frame_sizes(1500, false, Family::V4, 9200), (1472, 1472));
        assert_eq!(frame_sizes(1500, false, Family::V6, 9200), (1452, 1452));
        assert_eq!(frame_sizes(9000, false, Family::V4, 9200), (8972, 1472));
        assert_eq!(frame_sizes(1420, false, Family::V4, 9200), (1392, 1200));
        assert_eq!(frame_sizes(1500, false, Family::V4, 1000), (1000, 1000));
        assert_eq!(frame_sizes(20, false, Family::V6, 9200), (0, 0));
    }
}
