//! Detects whether a one-shot registration in an `epoll` set is disarmed.

use std::fs;

use libc::c_int;

/// Returns true if a one-shot registration has reported its event and the program has not armed the
/// registration again. The kernel shows this only in `/proc`. Without `/proc`, this function
/// returns false, so that the program may get an additional event.
pub(crate) fn is_disarmed(epoll: c_int, fd: c_int, events: u32) -> bool {
    if events & libc::EPOLLONESHOT as u32 == 0 {
        return false;
    }
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).unwrap_or_default();
    armed_events(&text, fd).is_some_and(|events| events & ASKED == 0)
}

/// Returns the armed events of number `fd`, from a line such as
/// `tfd:        5 events:       19 data:                5`.
fn armed_events(text: &str, fd: c_int) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let number: c_int = words.next()?.parse().ok()?;
        (number == fd && words.next()? == "events:").then_some(())?;
        u32::from_str_radix(words.next()?, 16).ok()
    })
}

/// Mask of the events that a program can request. The kernel adds the error events to each armed
/// registration.
const ASKED: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLPRI
    | libc::EPOLLRDHUP
    | libc::EPOLLERR
    | libc::EPOLLHUP) as u32;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pos:\t0\nflags:\t02\nmnt_id:\t15\n\
        tfd:        5 events:       19 data:                5  pos:0 ino:c2 sdev:8\n\
        tfd:        6 events: 40000000 data: ffffffffffffffff  pos:0 ino:c3 sdev:8\n";

    #[test]
    fn armed_events_are_those_of_the_kernel() {
        assert_eq!(armed_events(TEXT, 5), Some(0x19));
        assert_eq!(armed_events(TEXT, 6).map(|events| events & ASKED), Some(0));
        assert_eq!(armed_events(TEXT, 7), None);
        assert_eq!(armed_events("tfd: x\ntfd:\ntfd: 7 events: y", 7), None);
    }

    #[test]
    fn a_registration_for_all_events_is_never_disarmed() {
        assert!(!is_disarmed(-1, 5, libc::EPOLLIN as u32));
    }
}
