//! Properties of the host, apart from its interfaces, that affect speed.

use std::fs;
use std::thread;

use link::UdpConfig;
use link::host::{Capabilities, Capability, memory_lock};

/// A property of the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// A better value, and its benefit.
    pub(crate) advice: Option<String>,
    /// The command that applies the advice.
    pub(crate) remedy: Option<String>,
}

/// Returns the findings.
pub(crate) fn findings() -> Vec<Finding> {
    let capabilities = Capabilities::effective().unwrap_or_default();
    let udp = UdpConfig::default();
    let has_net_admin = capabilities.has(Capability::NetAdmin);
    let mut found = Vec::new();
    found.extend(kernel(read("/proc/sys/kernel/osrelease").as_deref()));
    found.push(processors(thread::available_parallelism().map_or(1, std::num::NonZero::get)));
    for (name, file, wanted_bytes) in [
        ("net.core.rmem_max", "/proc/sys/net/core/rmem_max", udp.receive_buffer_bytes),
        ("net.core.wmem_max", "/proc/sys/net/core/wmem_max", udp.send_buffer_bytes),
    ] {
        found.extend(buffer_limit(name, read(file).as_deref(), wanted_bytes, has_net_admin));
    }
    if let Ok(limit) = memory_lock() {
        found.push(locked_memory(limit.soft, capabilities.has(Capability::IpcLock)));
    }
    for (name, file) in [
        ("net.core.busy_poll", "/proc/sys/net/core/busy_poll"),
        ("net.core.busy_read", "/proc/sys/net/core/busy_read"),
    ] {
        // No advice, because links that poll set these values themselves.
        found.extend(read(file).map(|value| plain(name, value)));
    }
    found.extend(jit(read("/proc/sys/net/core/bpf_jit_enable").as_deref()));
    found.extend(descriptors(read("/proc/self/limits").as_deref()));
    found.extend(free_ports(read("/proc/sys/net/ipv4/ip_local_port_range").as_deref()));
    found.extend(huge_pages(read("/proc/meminfo").as_deref()));
    found
        .extend(governor(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").as_deref()));
    found
}

fn kernel(release: Option<&str>) -> Option<Finding> {
    let release = release?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let advice = (version < KERNEL_FOR_ALL).then(|| {
        let (major, minor) = KERNEL_FOR_ALL;
        format!(
            "XDP links whose program is removed automatically need Linux {major}.{minor} or later"
        )
    });
    Some(Finding { name: "kernel", value: release.into(), advice, remedy: None })
}

fn processors(count: usize) -> Finding {
    let advice = (count < 2)
        .then(|| "one processor for the application and one for the network is best".into());
    Finding { name: "processors", value: count.to_string(), advice, remedy: None }
}

/// Returns a finding about the largest permitted socket buffer.
fn buffer_limit(
    name: &'static str,
    value: Option<&str>,
    wanted_bytes: u32,
    has_net_admin: bool,
) -> Option<Finding> {
    let bytes: u64 = value?.parse().ok()?;
    // A process with `CAP_NET_ADMIN` may exceed the limit.
    let is_short = bytes < u64::from(wanted_bytes) && !has_net_admin;
    Some(Finding {
        name,
        value: bytes.to_string(),
        advice: is_short.then(|| {
            format!("UDP links request {wanted_bytes}; with less, bursts of frames are lost")
        }),
        remedy: is_short.then(|| format!("sudo sysctl -w {name}={wanted_bytes}")),
    })
}

fn locked_memory(soft_bytes: Option<u64>, may_exceed: bool) -> Finding {
    let is_short = soft_bytes.is_some_and(|bytes| bytes < LOCKED_BYTES_WANTED) && !may_exceed;
    Finding {
        name: "locked memory",
        value: soft_bytes.map_or_else(|| "unlimited".into(), |bytes| format!("{bytes} bytes")),
        advice: is_short
            .then(|| format!("an XDP link locks up to {LOCKED_BYTES_WANTED} bytes for frames")),
        remedy: is_short.then(|| format!("ulimit -l {}", LOCKED_BYTES_WANTED >> 10)),
    }
}

fn jit(value: Option<&str>) -> Option<Finding> {
    let value = value?;
    let is_off = value == "0";
    Some(Finding {
        name: "net.core.bpf_jit_enable",
        value: value.into(),
        advice: is_off.then(|| {
            "the kernel interprets the program of an XDP link instead of compiling it, which is \
             slow"
                .into()
        }),
        remedy: is_off.then(|| "sudo sysctl -w net.core.bpf_jit_enable=1".into()),
    })
}

/// Returns a finding about the number of descriptors that a process may have.
fn descriptors(limits: Option<&str>) -> Option<Finding> {
    let value = limits?.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = value.split_whitespace().next()?;
    // Without a limit, the value is a word.
    let is_short = soft.parse().is_ok_and(|count: u64| count < DESCRIPTORS_WANTED);
    Some(Finding {
        name: "open files",
        value: soft.into(),
        advice: is_short.then(|| {
            "an iWARP device needs a descriptor for each connection, besides those of the program"
                .into()
        }),
        remedy: is_short.then(|| format!("ulimit -n {DESCRIPTORS_WANTED}")),
    })
}

/// Returns a finding about the ports from which iWARP devices, like all TCP clients, connect.
fn free_ports(range: Option<&str>) -> Option<Finding> {
    let mut ports = range?.split_whitespace().map(str::parse::<u16>);
    let (first, last) = (ports.next()?.ok()?, ports.next()?.ok()?);
    let is_short = u32::from(last.saturating_sub(first)) < PORTS_WANTED;
    Some(Finding {
        name: "net.ipv4.ip_local_port_range",
        value: format!("{first} to {last}"),
        advice: is_short.then(|| {
            "an iWARP device connects from a port of this range, and an ended connection keeps its \
             port for a minute"
                .into()
        }),
        remedy: is_short
            .then(|| "sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'".into()),
    })
}

fn huge_pages(meminfo: Option<&str>) -> Option<Finding> {
    let count = meminfo?.lines().find_map(|line| line.strip_prefix("HugePages_Total:"))?;
    Some(plain("huge pages", count.trim().into()))
}

fn governor(value: Option<&str>) -> Option<Finding> {
    let value = value?;
    let is_slow = value != "performance";
    Some(Finding {
        name: "frequency governor",
        value: value.into(),
        advice: is_slow
            .then(|| "a processor that first raises its clock adds microseconds of latency".into()),
        remedy: is_slow.then(|| "sudo cpupower frequency-set -g performance".into()),
    })
}

fn plain(name: &'static str, value: String) -> Finding {
    Finding { name, value, advice: None, remedy: None }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().into())
}

/// First kernel that detaches XDP programs when the process that attached them ends
/// (`BPF_LINK_CREATE`).
const KERNEL_FOR_ALL: (u32, u32) = (5, 9);

/// Memory of an XDP link: 2048 frames of 4 KiB to receive, as many to send, and their rings.
const LOCKED_BYTES_WANTED: u64 = 17 << 20;

/// Number of open files that most hosts permit. A limit below it is unusual, and leaves too few
/// descriptors for connections.
const DESCRIPTORS_WANTED: u64 = 1024;

/// Number of ports for connections below which a program that connects often runs out of them. The
/// kernel has 28 thousand by default.
const PORTS_WANTED: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_and_few_ports_cause_a_warning() {
        let limits = |soft: &str| format!("Max open files   {soft}   524288   files\n");
        let short = descriptors(Some(&limits("256"))).unwrap();
        assert_eq!((short.value.as_str(), short.remedy.unwrap()), ("256", "ulimit -n 1024".into()));
        assert_eq!(descriptors(Some(&limits("1024"))).unwrap().advice, None);
        assert_eq!(descriptors(Some(&limits("unlimited"))).unwrap().advice, None);
        assert_eq!(descriptors(Some("Max cpu time 1 2")), None);
        assert_eq!(free_ports(Some("32768\t60999")).unwrap().advice, None);
        let few = free_ports(Some("60000 60099")).unwrap();
        assert!(few.advice.is_some() && few.value == "60000 to 60099");
        assert_eq!(free_ports(Some("60000")), None);
    }

    #[test]
    fn small_socket_buffers_cause_a_warning_unless_they_can_be_exceeded() {
        let short = buffer_limit("net.core.rmem_max", Some("212992"), 4 << 20, false).unwrap();
        assert_eq!(short.remedy.unwrap(), "sudo sysctl -w net.core.rmem_max=4194304");
        let free = buffer_limit("net.core.rmem_max", Some("212992"), 4 << 20, true).unwrap();
        assert_eq!(free.advice, None);
        assert_eq!(buffer_limit("net.core.rmem_max", Some("?"), 1, false), None);
    }

    #[test]
    fn kernels_are_compared_by_number() {
        assert!(kernel(Some("5.4.0-26-generic")).unwrap().advice.is_some());
        for new_enough in ["5.9", "5.10.0", "6.1.0-13-amd64", "10.0"] {
            assert_eq!(kernel(Some(new_enough)).unwrap().advice, None, "{new_enough}");
        }
        assert_eq!(kernel(Some("strange")), None);
    }

    #[test]
    fn the_limit_of_locked_memory_matters_where_it_applies() {
        assert!(locked_memory(Some(64 << 10), false).remedy.is_some());
        assert_eq!(locked_memory(Some(64 << 10), true).remedy, None);
        assert_eq!(locked_memory(None, false).remedy, None);
    }
}
